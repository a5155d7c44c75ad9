"""The job file: what to train, on what, how, and how many failures to survive.

    job = load_job_file("examples/shakespeare.yaml")
    job.training.steps, job.num_microbatches

Every field but `model`, `data` and `training.steps` has a default. `planaria schema` prints the
JSON Schema that follows from these classes.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from planaria._words import counted


def _refuse_truth_values(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "must be a number, not true or false")
    return value


_MAX_MICROBATCHES = 16_384

Count = Annotated[int, Field(le=2**31 - 1), BeforeValidator(_refuse_truth_values)]
LayerCount = Annotated[int, Field(ge=1, le=1000), BeforeValidator(_refuse_truth_values)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1), BeforeValidator(_refuse_truth_values)]
Real = Annotated[float, BeforeValidator(_refuse_truth_values)]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class FamilySpec(_Section):
    """A model of a known architecture; fields left out take the family's default."""

    family: Literal["gpt2", "llama", "qwen3"]
    """The architecture."""
    hidden_size: Count = Field(ge=1)
    """Width of the residual stream."""
    num_layers: LayerCount
    """Number of decoder blocks; the embedding and the head come on top."""
    num_heads: Count = Field(ge=1)
    """Number of attention heads."""
    vocab_size: Count = Field(ge=2)
    """Number of tokens in the vocabulary."""
    num_key_value_heads: Count | None = Field(default=None, ge=1)
    """Number of key and value heads; as many as attention heads by default."""
    intermediate_size: Count | None = Field(default=None, ge=1)
    """Width of the feed-forward network."""
    max_position_embeddings: Count | None = Field(default=None, ge=1)
    """Longest sequence that the model can be used with."""
    tie_word_embeddings: bool | None = None
    """Whether the head shares the embedding's weights."""
    head_dim: Count | None = Field(default=None, ge=1)
    """Width of one attention head; hidden_size / num_heads by default."""
    rope_theta: Real | None = Field(default=None, gt=0)
    """Base of the rotary position embedding."""
    dropout: Real = Field(default=0.0, ge=0, lt=1)
    """Probability that training leaves out an activation; the same ones whatever the plan."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "FamilySpec":
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise _problem(
                "num_heads",
                f"{self.num_heads} does not divide hidden_size {self.hidden_size}; "
                f"{_nearby_divisors(self.hidden_size, self.num_heads)} would, or set head_dim",
            )
        groups = self.num_key_value_heads
        if groups is not None and self.num_heads % groups:
            raise _problem(
                "num_key_value_heads",
                f"{groups} does not divide num_heads {self.num_heads}; "
                f"{_nearby_divisors(self.num_heads, groups)} would",
            )
        return self


class ImportedSpec(_Section):
    """A model of your own: a list of layers that a function of yours returns on every node."""

    import_path: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """`module:function`; the module must be importable on every node, and the same there."""
    arguments: dict[str, JsonValue] = {}
    """What the function is called with, by name."""


class HuggingFaceSpec(_Section):
    """A model as a Hugging Face configuration describes it."""

    huggingface: dict[str, JsonValue]
    """A config.json or the folder it is in, read when the job is submitted; or its contents."""


MODEL_KINDS: Mapping[str, type[_Section]] = {
    "family": FamilySpec,
    "import_path": ImportedSpec,
    "huggingface": HuggingFaceSpec,
}
"""The kinds of `model` section, by the field that tells them apart."""


def _model_kind(value: object) -> str:
    if isinstance(value, Mapping):
        given = (kind for kind in MODEL_KINDS if kind in value)
    else:
        given = (kind for kind, section in MODEL_KINDS.items() if isinstance(value, section))
    return next(given, "family")


ModelSpec = Annotated[
    Annotated[FamilySpec, Tag("family")]
    | Annotated[ImportedSpec, Tag("import_path")]
    | Annotated[HuggingFaceSpec, Tag("huggingface")],
    Discriminator(_model_kind),
]


class DataSpec(_Section):
    """The text to train on, as the nodes see it."""

    path: str = Field(min_length=1)
    """A text file or a pattern such as corpus/*.txt, the same on every node."""
    tokenizer: str = Field(default="byte", min_length=1)
    """`byte`, or the path of a Hugging Face tokenizer.json."""
    sequence_length: Count = Field(default=128, ge=1)
    """Number of tokens in a sequence."""


class OptimizerSpec(_Section):
    """How a step changes the parameters."""

    name: Literal["adamw"] = "adamw"
    """The optimizer."""
    learning_rate: Real = Field(default=3e-4, gt=0)
    """The learning rate at its highest."""
    warmup_steps: Count = Field(default=0, ge=0)
    """Number of steps in which the learning rate grows linearly to its highest."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """How the learning rate goes on after the warm-up."""
    weight_decay: Real = Field(default=0.1, ge=0)
    """Decoupled weight decay of matrices and embeddings."""
    clip_norm: Real = Field(default=1.0, gt=0)
    """The gradient is scaled down to this norm when it is longer."""


class TrainingSpec(_Section):
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
    buckets_in_flight: Count = Field(default=4, ge=1)
    """How many buckets of gradient sums a rank has under way at once."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """How a step changes the parameters."""

    @model_validator(mode="after")
    def _microbatch_divides(self) -> "TrainingSpec":
        if self.global_batch_size % self.microbatch_size:
            raise _problem(
                "microbatch_size",
                f"{self.microbatch_size} does not divide training.global_batch_size "
                f"{self.global_batch_size}; "
                f"{_nearby_divisors(self.global_batch_size, self.microbatch_size)} would",
            )
        return self


class ResilienceSpec(_Section):
    """What the job must survive."""

    fault_tolerance: Count = Field(default=1, ge=0)
    """How many nodes may be lost at once without losing a committed step."""


class ResourcesSpec(_Section):
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
            raise _problem(
                "max_nodes",
                f"{self.max_nodes} is less than resources.min_nodes {self.min_nodes}; "
                f"it must be at least {self.min_nodes}",
            )
        return self


class OutputSpec(_Section):
    """Where the trained model goes."""

    path: str = Field(min_length=1)
    """The folder to write, on the node that writes."""
    format: Literal["huggingface", "safetensors"] = "huggingface"
    """`safetensors` is the weights alone, for models that Hugging Face does not know."""


class CheckpointSpec(_Section):
    """What to keep of a job while it trains, so that another job can go on from there."""

    path: str = Field(min_length=1)
    """The folder of the checkpoints, on storage that all nodes share."""
    every_steps: Count = Field(default=100, ge=1)
    """A checkpoint is written whenever this divides the number of committed steps, and at the
    end."""
    keep: Count = Field(default=3, ge=1)
    """Number of complete checkpoints that are kept; older ones are removed."""
    deadline_seconds: Real = Field(default=60.0, gt=0)
    """How long writing a layer may take, beside the time for its bytes at 20 MB/s: after that the
    disk counts as hung, and other replicas write in that engine's place."""


class EvaluationDataSpec(_Section):
    """A text that is never trained on, as the nodes see it."""

    path: str = Field(min_length=1)
    """A text file or a pattern, the same on every node; read with `data.tokenizer`."""


class EvaluationSpec(_Section):
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
            raise _problem("fraction", "is missing; set it, or evaluation.data.path")
        if self.data is not None and self.fraction is not None:
            raise _problem(
                "fraction", "cannot be combined with evaluation.data; set one of the two"
            )
        return self


class WandbSpec(_Section):
    """A project of Weights & Biases."""

    project: str = Field(min_length=1)
    """The project; the run has the job's id."""


class MetricsSpec(_Section):
    """Where `planaria submit --follow` and `planaria jobs track` write each step."""

    tensorboard: str | None = Field(default=None, min_length=1)
    """A folder on the machine of the command, in which the job gets one of its own."""
    wandb: WandbSpec | None = None
    """A project of Weights & Biases."""


class JobSpec(_Section):
    """A training job."""

    name: str = Field(default="job", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """A name for people; it need not be unique."""
    model: ModelSpec
    """The model: a `family` and its sizes, an `import_path`, or a `huggingface` configuration."""
    data: DataSpec
    """The text to train on."""
    training: TrainingSpec
    """How long to train, and on how much at once."""
    resilience: ResilienceSpec = ResilienceSpec()
    """What the job must survive."""
    resources: ResourcesSpec = ResourcesSpec()
    """How many nodes the job may use."""
    init_from: str | None = Field(default=None, min_length=1)
    """Where training begins: a checkpoint, a folder of them (the newest), or a Hugging Face folder
    of safetensors, the same on every node; by default from the seed."""
    checkpoint: CheckpointSpec | None = None
    """Where and how often checkpoints are written; never by default."""
    evaluation: EvaluationSpec | None = None
    """What the model is evaluated on, and how often; never by default."""
    output: OutputSpec | None = None
    """Where the trained model goes; nowhere by default."""
    metrics: MetricsSpec | None = None
    """Where commands that follow the job write each step; nowhere by default."""
    scheduler: str = Field(default="default", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """`default`, or the name of a connected custom scheduler."""

    @model_validator(mode="after")
    def _sections_agree(self) -> "JobSpec":
        if isinstance(self.model, FamilySpec):
            _check_vocabulary(self.data, self.model)
            _check_positions(self.data, self.model)
        for check in (_check_output, _check_microbatches, _check_replicas, _check_evaluation):
            check(self)
        return self

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches of one step, over all pipelines together."""
        return self.training.global_batch_size // self.training.microbatch_size

    @property
    def num_commits(self) -> int:
        """Number of commits of the whole job: a closing one evaluates the last parameters."""
        return self.training.steps + (self.evaluation is not None)

    def to_document(self) -> dict[str, Any]:
        """Return the job file as plain values, with every default filled in."""
        return self.model_dump(mode="json")

    def canonical_json(self) -> str:
        """Return JSON that is the same text for equal jobs."""
        return json.dumps(
            self.to_document(), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )

    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()


def _check_vocabulary(data: DataSpec, model: FamilySpec) -> None:
    if data.tokenizer == "byte" and model.vocab_size < 256:
        raise _problem(
            "model.vocab_size",
            f"{model.vocab_size} is too small for the byte tokenizer; it needs at least 256",
        )


def _check_positions(data: DataSpec, model: FamilySpec) -> None:
    longest = model.max_position_embeddings
    if longest is not None and data.sequence_length > longest:
        raise _problem(
            "data.sequence_length",
            f"{data.sequence_length} is more than model.max_position_embeddings {longest}; "
            f"it must be at most {longest}",
        )


def _check_output(job: JobSpec) -> None:
    is_imported = isinstance(job.model, ImportedSpec)
    if is_imported and job.output is not None and job.output.format == "huggingface":
        raise _problem(
            "output.format",
            "huggingface cannot hold a model by import_path; it must be safetensors",
        )


def _check_microbatches(job: JobSpec) -> None:
    # Plans name every microbatch.
    if job.num_microbatches > _MAX_MICROBATCHES:
        least = math.ceil(job.training.global_batch_size / _MAX_MICROBATCHES)
        raise _problem(
            "training.microbatch_size",
            f"{job.training.microbatch_size} cuts a step into {job.num_microbatches} microbatches, "
            f"more than {_MAX_MICROBATCHES}; it must be at least {least}",
        )


def _check_replicas(job: JobSpec) -> None:
    replicas = job.resilience.fault_tolerance + 1
    if job.num_microbatches < replicas:
        raise _problem(
            "training.global_batch_size",
            f"a step of {job.num_microbatches} microbatches cannot feed the {replicas} pipelines "
            f"of resilience.fault_tolerance {replicas - 1}; it must be at least "
            f"{replicas * job.training.microbatch_size}",
        )
    needed = replicas * job.resources.min_nodes_per_pipeline
    if job.resources.max_nodes is not None and job.resources.max_nodes < needed:
        raise _problem(
            "resources.max_nodes",
            f"{counted(job.resources.max_nodes, 'node')} cannot hold the "
            f"{counted(replicas, 'pipeline')} of resilience.fault_tolerance {replicas - 1}; "
            f"it must be at least {needed}",
        )


def _check_evaluation(job: JobSpec) -> None:
    size = job.training.microbatch_size
    wanted = job.evaluation.num_sequences if job.evaluation is not None else None
    if wanted is not None and wanted % size:
        below = wanted - wanted % size
        nearby = f"{below} or {below + size}" if below else str(size)
        raise _problem(
            "evaluation.num_sequences",
            f"{wanted} is no multiple of training.microbatch_size {size}; {nearby} would be",
        )


def _problem(field: str, message: str) -> PydanticCustomError:
    # Braces in the text would be taken for placeholders: it travels as a value.
    return PydanticCustomError("job_problem", "{text}", {"field": field, "text": message})


def _nearby_divisors(number: int, wanted: int) -> str:
    """Return the divisors of `number` next to `wanted`, below and above, in words."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    divisors = {*small, *(number // n for n in small)}
    below = max(n for n in divisors if n <= wanted)
    above = min((n for n in divisors if n >= wanted), default=below)
    return str(below) if below == above else f"{below} or {above}"
