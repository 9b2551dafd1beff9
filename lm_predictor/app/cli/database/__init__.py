"""Which commands read, make and check records?"""
