"""The sections `data` and `training` of a job file."""

from typing import Literal

from pydantic import Field, model_validator

from planaria.job.fields import EXPERT, Count, Real, Section, Seed, nearby_divisors, problem


class DataSpec(Section):
    """The text to train on, as the nodes see it."""

    path: str = Field(min_length=1)
    """A text file or a pattern such as corpus/*.txt, the same on every node."""
    tokenizer: str = Field(default="byte", min_length=1)
    """`byte`, or the path of a Hugging Face tokenizer.json."""
    sequence_length: Count = Field(default=128, ge=1)
    """Number of tokens in a sequence."""


class OptimizerSpec(Section):
    """How a step changes the parameters."""

    name: Literal["adamw"] = "adamw"
    """The optimizer."""
    learning_rate: Real = Field(default=3e-4, gt=0)
    """The learning rate at its highest."""
    warmup_steps: Count = Field(default=0, ge=0)
    """Number of steps in which the learning rate grows linearly to its highest."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """How the learning rate continues after the warm-up."""
    weight_decay: Real = Field(default=0.1, ge=0)
    """Decoupled weight decay of matrices and embeddings."""
    clip_norm: Real = Field(default=1.0, gt=0)
    """The gradient is scaled down to this norm when it is longer."""


class TrainingSpec(Section):
    """How long to train, and on how much at once."""

    steps: Count = Field(ge=1)
    """Number of optimizer steps."""
    global_batch_size: Count = Field(default=32, ge=1)
    """Number of sequences in a step, over all pipelines together."""
    microbatch_size: Count = Field(default=1, ge=1)
    """Number of sequences that go through a pipeline at once."""
    seed: Seed = 0
    """What the initial parameters and the order of the data follow from."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The type that is computed with; the parameters that a step changes are always float32."""
    activation_checkpointing: bool = False
    """Keeps only the inputs of blocks, and computes the rest again in the backward pass."""
    reproducible: bool = True
    """Whether the result is bitwise the same, whatever plan and failures."""
    max_skipped_steps: Count = Field(default=10, ge=0)
    """How many steps in a row are skipped, without any change to the parameters, because a gradient
    or the loss is not finite or too large; one more ends the job."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """How a step changes the parameters."""
    buckets_in_flight: Count = Field(default=4, ge=1, json_schema_extra=EXPERT)
    """How many buckets of gradient sums an engine reduces at once."""
    bucket_bytes: Count = Field(default=8 << 20, ge=4096, json_schema_extra=EXPERT)
    """Size of a bucket. A small one starts earlier in the last backward pass, a large one uses a
    fast network better."""

    @model_validator(mode="after")
    def _microbatch_divides(self) -> "TrainingSpec":
        if self.global_batch_size % self.microbatch_size:
            raise problem(
                "microbatch_size",
                f"{self.microbatch_size} does not divide training.global_batch_size "
                f"{self.global_batch_size}; "
                f"{nearby_divisors(self.global_batch_size, self.microbatch_size)} would",
            )
        return self
