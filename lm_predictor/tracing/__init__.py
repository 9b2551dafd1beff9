"""What does a forward() execute, symbolically?"""
