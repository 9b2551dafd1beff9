"""What does a serving engine run instead of the source?"""
