"""How are many workloads answered at once, and fast?"""
