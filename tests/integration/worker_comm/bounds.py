"""How long tests of groups wait."""

GLOO_TIMEOUT_SECONDS = 90.0
"""What a wait lasts when nobody wakes it."""
BOUND_SECONDS = 25.0
"""What a test waits for a rank to wake: long for a loaded machine, short against gloo's timeout."""
