"""Where does a config come from, and the code that a model brings along?"""
