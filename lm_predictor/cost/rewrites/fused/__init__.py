"""Which operators of the source become one kernel of an engine?"""
