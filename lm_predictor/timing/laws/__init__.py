"""How does a kernel's time follow from its sizes?"""
