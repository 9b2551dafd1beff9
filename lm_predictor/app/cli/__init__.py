"""How does the program talk with a shell?"""
