"""How is the cost of a class laid open, line by line?"""
