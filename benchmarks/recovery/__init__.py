"""What losing, stopping, draining and adding a node costs: `python -m benchmarks.recovery`."""
