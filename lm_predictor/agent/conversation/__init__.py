"""How is a language model asked, what may it read, and what was said?"""
