"""Bootstrapped DQN with randomised priors (Osband et al. 2018): the paper's baseline B+P."""
