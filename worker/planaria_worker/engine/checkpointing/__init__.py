"""Checkpoints of a job: layer files written by its engines in turn, beside the training."""

from planaria_worker.engine.checkpointing.checkpointer import Checkpointer
from planaria_worker.engine.checkpointing.errors import CheckpointError

__all__ = ["CheckpointError", "Checkpointer"]
