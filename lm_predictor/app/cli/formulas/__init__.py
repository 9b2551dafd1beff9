"""Which commands hand formulas on, or compare them?"""
