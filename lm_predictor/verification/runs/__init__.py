"""What does the model itself do, in plain numbers?"""
