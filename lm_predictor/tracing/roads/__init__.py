"""On which roads, from all integers as symbols down to runs with numbers, is a model traced?"""
