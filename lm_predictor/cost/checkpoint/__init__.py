"""What does a checkpoint change in the cost of a model?"""
