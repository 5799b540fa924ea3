"""Learning experiments."""
