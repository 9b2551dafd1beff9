"""How does a cost follow a slider?"""
