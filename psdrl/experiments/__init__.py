"""Learning experiments: runs, figures, probes."""
