"""What the coordinator knows and decides: no I/O, no clock, no randomness of its own."""
