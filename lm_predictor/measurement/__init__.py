"""How long do kernels and models take on this machine?"""
