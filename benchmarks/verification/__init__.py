"""Long tests, cell by cell: `python -m benchmarks.verification matrix`."""
