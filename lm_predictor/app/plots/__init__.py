"""How is a cost drawn?"""
