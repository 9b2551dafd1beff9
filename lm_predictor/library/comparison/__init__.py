"""What has changed between two costs, and how does a test say what may?"""
