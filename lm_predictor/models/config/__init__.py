"""What do the numbers of a config say, and do they agree with one another?"""
