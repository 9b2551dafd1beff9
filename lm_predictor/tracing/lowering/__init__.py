"""How does a trace become records of a model and of its classes?"""
