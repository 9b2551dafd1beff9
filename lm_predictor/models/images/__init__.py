"""What does a model's processor make of an image?"""
