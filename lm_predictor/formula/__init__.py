"""How is a cost written, read safely, computed and typeset?"""
