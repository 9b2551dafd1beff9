"""How is a formula written in another language?"""
