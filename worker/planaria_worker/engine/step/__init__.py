"""One training step: 1F1B schedule, forward and backward passes, two-phase commit, update."""
