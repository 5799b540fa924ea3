"""PSDRL, as the paper writes it and as fast as we can."""
