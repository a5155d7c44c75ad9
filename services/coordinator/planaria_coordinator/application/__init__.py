"""What the coordinator does: use cases, one actor per job, sessions; ports for what it needs."""
