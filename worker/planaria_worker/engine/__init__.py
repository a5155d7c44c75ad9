"""The engine: the training process, one per accelerator used by a job."""
