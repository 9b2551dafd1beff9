"""What does an operator cost, and which intermediates reach memory?"""
