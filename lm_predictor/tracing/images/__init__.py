"""What does a model execute for its images?"""
