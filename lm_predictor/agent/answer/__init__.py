"""Is what the agent wrote sound, and is it right?"""
