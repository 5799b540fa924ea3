"""A run: loop, evaluation, checkpoints, log. Knows agents by their interface only."""
