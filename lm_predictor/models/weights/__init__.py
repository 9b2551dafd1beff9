"""How does a checkpoint store its weights?"""
