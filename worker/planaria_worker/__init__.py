"""The worker: the agent and the engine, the only part that imports torch."""
