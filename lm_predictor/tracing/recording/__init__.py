"""What does a forward() see instead of tensors with data, and what is written down of what it does?"""
