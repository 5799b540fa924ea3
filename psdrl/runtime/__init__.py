"""How code runs: device, compilation, CUDA graphs, profiling. Knows no agent."""
