"""`psdrl view`: what a run's models foresee, drawn beside what happened."""
