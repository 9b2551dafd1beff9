"""How do other programs use the formulas?"""
