"""How long does one kernel take: by the peaks of the device, and by its calibrated law?"""
