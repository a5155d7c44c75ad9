"""The section `model` of a job file: a family and its sizes, an import path, or a configuration."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from planaria.job.fields import Count, LayerCount, Real, Section, nearby_divisors, problem


class FamilySpec(Section):
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
            raise problem(
                "num_heads",
                f"{self.num_heads} does not divide hidden_size {self.hidden_size}; "
                f"{nearby_divisors(self.hidden_size, self.num_heads)} would, or set head_dim",
            )
        groups = self.num_key_value_heads
        if groups is not None and self.num_heads % groups:
            raise problem(
                "num_key_value_heads",
                f"{groups} does not divide num_heads {self.num_heads}; "
                f"{nearby_divisors(self.num_heads, groups)} would",
            )
        return self


class ImportedSpec(Section):
    """A model of your own: a list of layers that a function of yours returns on every node."""

    import_path: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """`module:function`; the module must be importable on every node, and the same there."""
    arguments: dict[str, JsonValue] = Field(default={})
    """What the function is called with, by name."""


class HuggingFaceSpec(Section):
    """A model as a Hugging Face configuration describes it."""

    huggingface: dict[str, JsonValue]
    """A config.json or the folder it is in, read when the job is submitted; or its contents."""


MODEL_KINDS: Mapping[str, type[Section]] = {
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
