"""How fast the planner plans: `python -m benchmarks.planner.run`."""
