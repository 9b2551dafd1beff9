"""How is a predicted run shown: by module, by place in the tree, in a notebook?"""
