"""How is a new record made from source?"""
