"""How does a name become a config, and which record answers it?"""
