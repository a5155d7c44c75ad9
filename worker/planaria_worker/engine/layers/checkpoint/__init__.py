"""Checkpoints of a job: layer files written by its engines in turn, beside the training."""

from planaria_worker.engine.layers.checkpoint.checkpointer import Checkpointer
from planaria_worker.engine.layers.checkpoint.errors import CheckpointError

__all__ = ["CheckpointError", "Checkpointer"]
