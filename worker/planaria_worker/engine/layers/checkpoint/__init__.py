"""Checkpoints of a job: its engines write layer files while training continues."""

from planaria_worker.engine.layers.checkpoint.checkpointer import Checkpointer
from planaria_worker.engine.layers.checkpoint.errors import CheckpointError

__all__ = ["CheckpointError", "Checkpointer"]
