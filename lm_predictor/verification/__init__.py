"""Do the roads to a number agree?"""
