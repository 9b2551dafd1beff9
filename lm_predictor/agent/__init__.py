"""How does a language model explain a class, and how is it checked?"""
