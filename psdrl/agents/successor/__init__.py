"""Successor Uncertainties (Janz et al. 2019): the paper's baseline SU."""
