"""Flags: from a class of settings to a command line, its help, and what it says to a mistake. tyro is the parser."""
