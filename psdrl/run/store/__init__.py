"""Files of a run: written atomically and checksummed; loading them can execute no code."""
