"""Training in one engine: the training thread, the loop over steps, and how a plan is activated."""
