"""Which commands say what a model costs?"""
