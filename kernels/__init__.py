"""One folder per operation: the oracle, straight from the paper's equation, beside the fast versions."""
