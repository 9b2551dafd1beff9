"""How is a Hugging Face model built without weights and run once?"""
