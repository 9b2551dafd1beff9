"""How is it used: from a shell, in a picture, under sliders, in an audit?"""
