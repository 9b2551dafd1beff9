"""How long does a model take on a device?"""
