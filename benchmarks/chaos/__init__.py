"""Random kills, stops, joins and drains on real processes: `python -m benchmarks.chaos`."""
