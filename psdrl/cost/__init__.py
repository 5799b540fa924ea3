"""What a run costs: work of layers, devices, forecast."""
