"""What is stored about a class and about a model?"""
