"""The sections of a job file that may be left out."""

from typing import Literal

from pydantic import Field, model_validator

from planaria.job.fields import Count, Real, Section, problem


class ResilienceSpec(Section):
    """What the job must survive."""

    fault_tolerance: Count = Field(default=1, ge=0)
    """How many nodes may be lost at once without losing a committed step."""
    min_fault_tolerance: Count | None = Field(default=None, ge=0)
    """What a plan of a custom scheduler must survive at least; by default `fault_tolerance`."""
    unreachable_timeout_seconds: Real = Field(default=1800.0, ge=0)
    """When every replica of a layer is on nodes that cannot be reached, the job waits so long for
    one of them before it takes its newest checkpoint. Without a checkpoint it keeps waiting."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> "ResilienceSpec":
        least = self.min_fault_tolerance
        if least is not None and least > self.fault_tolerance:
            raise problem(
                "min_fault_tolerance",
                f"{least} is more than resilience.fault_tolerance {self.fault_tolerance}; "
                f"it must be at most {self.fault_tolerance}",
            )
        return self


class ResourcesSpec(Section):
    """How many nodes the job may use."""

    min_nodes: Count = Field(default=1, ge=1)
    """The job waits until so many nodes are ready."""
    max_nodes: Count | None = Field(default=None, ge=1)
    """The job never uses more nodes; no limit by default."""
    min_nodes_per_pipeline: Count = Field(default=1, ge=1)
    """A pipeline spans at least so many nodes, even where fewer hold the model."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> "ResourcesSpec":
        if self.max_nodes is not None and self.max_nodes < self.min_nodes:
            raise problem(
                "max_nodes",
                f"{self.max_nodes} is less than resources.min_nodes {self.min_nodes}; "
                f"it must be at least {self.min_nodes}",
            )
        return self


class OutputSpec(Section):
    """Where the trained model goes."""

    path: str = Field(min_length=1)
    """The folder to write, on the node that writes; parameters are float32, whichever
    `training.dtype`."""
    format: Literal["huggingface", "safetensors"] = "huggingface"
    """`safetensors` is the weights alone, for models that Hugging Face does not know."""


class CheckpointSpec(Section):
    """What to keep of a job while it trains, so that another job can continue from there."""

    path: str = Field(min_length=1)
    """The folder of the checkpoints, on storage that all nodes share."""
    every_steps: Count = Field(default=100, ge=1)
    """A checkpoint is written whenever this divides the number of committed steps, and at the
    end."""
    keep: Count = Field(default=3, ge=1)
    """Number of complete checkpoints that are kept; older ones are removed."""
    deadline_seconds: Real = Field(default=60.0, gt=0)
    """How long writing a layer may take, in addition to the time for its bytes at 20 MB/s: after
    that the disk counts as hung, and other replicas write in that engine's place."""


class EvaluationDataSpec(Section):
    """A text that is never trained on, as the nodes see it."""

    path: str = Field(min_length=1)
    """A text file or a pattern, the same on every node; read with `data.tokenizer`."""


class EvaluationSpec(Section):
    """What the model is evaluated on while it trains, and how often."""

    every_steps: Count = Field(default=100, ge=1)
    """The model is evaluated whenever this divides the number of committed steps, also before the
    first one, and at the end."""
    data: EvaluationDataSpec | None = None
    """A text of its own."""
    fraction: Real | None = Field(default=None, gt=0, lt=1)
    """In place of `data`: the part of the sequences of `data.path` that is held out of training."""
    num_sequences: Count | None = Field(default=None, ge=1)
    """How many of these sequences an evaluation takes; all of them by default."""

    @model_validator(mode="after")
    def _has_one_source(self) -> "EvaluationSpec":
        if self.data is None and self.fraction is None:
            raise problem("fraction", "is missing; set it, or evaluation.data.path")
        if self.data is not None and self.fraction is not None:
            raise problem("fraction", "cannot be combined with evaluation.data; set one of the two")
        return self


class WandbSpec(Section):
    """A project of Weights & Biases."""

    project: str = Field(min_length=1)
    """The project; the run has the job's id."""


class MetricsSpec(Section):
    """Where `planaria submit --follow` and `planaria jobs track` write each step."""

    tensorboard: str | None = Field(default=None, min_length=1)
    """A folder on the machine of the command, in which the job gets one of its own."""
    wandb: WandbSpec | None = None
    """A project of Weights & Biases."""
