"""How are records kept in files so that none is lost or torn, and found again?"""
