"""What does a module of your own execute?"""
