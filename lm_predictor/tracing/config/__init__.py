"""What of a config decides what a model executes?"""
