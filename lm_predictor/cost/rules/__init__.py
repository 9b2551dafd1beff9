"""What does one operator, or one accelerated function, cost?"""
