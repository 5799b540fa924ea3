"""DreamerV2 (Hafner et al. 2021): the paper's baseline Dv2."""
