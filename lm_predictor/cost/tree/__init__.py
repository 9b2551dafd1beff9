"""What does a class cost with all that it calls?"""
