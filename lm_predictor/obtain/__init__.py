"""Which record answers a config: a stored one, or a new one?"""
