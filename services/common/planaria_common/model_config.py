"""A model's configuration, from a job file or a Hugging Face config.json, without torch.

The coordinator plans with it at submission; the worker builds the very same model.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

Family = Literal["gpt2", "llama", "qwen3"]
FAMILIES: tuple[Family, ...] = get_args(Family)

_ROPE_THETA = {"gpt2": 0.0, "llama": 10_000.0, "qwen3": 1_000_000.0}
_NORM_EPSILON = {"gpt2": 1e-5, "llama": 1e-6, "qwen3": 1e-6}
_MAX_POSITION_EMBEDDINGS = {"gpt2": 1024, "llama": 2048, "qwen3": 32_768}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a model. `create` and `from_huggingface` make one, and fill in defaults."""

    family: Family
    hidden_size: int
    num_blocks: int
    """Decoder blocks: the job file's `model.num_layers`."""
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope_theta: float
    """Base of the rotary position embedding; unused by gpt2."""
    norm_epsilon: float
    initializer_range: float
    """Standard deviation of the initial weights."""
    dropout: float
    attention_bias: bool
    """Whether the attention's projections have a bias (gpt2's always have)."""
    mlp_bias: bool
    huggingface_json: str
    """The Hugging Face config.json that this configuration was read from, or empty."""

    @property
    def num_layers(self) -> int:
        """Layers that are placed: the embedding, the blocks and the head."""
        return self.num_blocks + 2

    @classmethod
    def create(
        cls,
        *,
        family: str,
        hidden_size: int,
        num_layers: int,
        num_heads: int,
        vocab_size: int,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        intermediate_size: int | None = None,
        max_position_embeddings: int | None = None,
        tie_word_embeddings: bool | None = None,
        rope_theta: float | None = None,
        norm_epsilon: float | None = None,
        initializer_range: float = 0.02,
        dropout: float = 0.0,
        attention_bias: bool | None = None,
        mlp_bias: bool | None = None,
        huggingface_json: str = "",
    ) -> Self:
        """Completes and checks the job file's `model` section.

        `num_layers` counts decoder blocks, as the job file does. `intermediate_size` is by default
        4·hidden (gpt2), 3·hidden (qwen3), or 8/3·hidden rounded up to a multiple of 64 (llama);
        `tie_word_embeddings` is true for gpt2 and false for the others.

        Raises:
            ValueError: one line that names the field and what would be right.
        """
        if family not in FAMILIES:
            raise ValueError(f"model.family: {family!r} is not one of {', '.join(FAMILIES)}")
        is_gpt2 = family == "gpt2"
        config = cls(
            family=family,
            hidden_size=hidden_size,
            num_blocks=num_layers,
            num_heads=num_heads,
            num_key_value_heads=num_heads if num_key_value_heads is None else num_key_value_heads,
            head_dim=hidden_size // max(num_heads, 1) if head_dim is None else head_dim,
            intermediate_size=_default_intermediate_size(family, hidden_size)
            if intermediate_size is None
            else intermediate_size,
            vocab_size=vocab_size,
            max_position_embeddings=_MAX_POSITION_EMBEDDINGS[family]
            if max_position_embeddings is None
            else max_position_embeddings,
            tie_word_embeddings=is_gpt2 if tie_word_embeddings is None else tie_word_embeddings,
            rope_theta=_ROPE_THETA[family] if rope_theta is None else rope_theta,
            norm_epsilon=_NORM_EPSILON[family] if norm_epsilon is None else norm_epsilon,
            initializer_range=initializer_range,
            dropout=dropout,
            attention_bias=is_gpt2 if attention_bias is None else attention_bias,
            mlp_bias=is_gpt2 if mlp_bias is None else mlp_bias,
            huggingface_json=huggingface_json,
        )
        _check(config)
        return config

    @classmethod
    def from_job_file(cls, section: Mapping[str, Any]) -> Self:
        """Reads a job file's `model` section that names a family or a Hugging Face configuration.

        Raises:
            ValueError: one line that names the field and what would be right.
        """
        if "huggingface" in section:
            return cls.from_huggingface(section["huggingface"])
        return cls.create(**section)

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> Self:
        """Reads the contents of a Hugging Face config.json; the rest of it is kept for the worker.

        Raises:
            ValueError: a family we do not know, a field is missing, or an option that cannot be cut
                into stages.
        """
        family = config.get("model_type")
        if family not in FAMILIES:
            raise ValueError(
                f"model.huggingface: model_type {family!r} is not one of {', '.join(FAMILIES)}"
            )
        _refuse_unsupported(config)
        names = _GPT2_NAMES if family == "gpt2" else _LLAMA_NAMES
        fields = {
            ours: config[theirs] for ours, theirs in names.items() if config.get(theirs) is not None
        }
        rope: Mapping[str, Any] = config.get("rope_parameters") or {}
        if "rope_theta" in rope:
            fields["rope_theta"] = rope["rope_theta"]
        missing = {"hidden_size", "num_layers", "num_heads", "vocab_size"} - fields.keys()
        if missing:
            absent = ", ".join(sorted(names[name] for name in missing))
            raise ValueError(f"model.huggingface: the config lacks {absent}")
        if family == "qwen3":
            fields.setdefault("head_dim", 128)
        if family == "gpt2":
            fields.setdefault("dropout", 0.1)
        return cls.create(
            family=family, **fields, huggingface_json=json.dumps(dict(config), sort_keys=True)
        )


# Our names of the fields, and where each family's config.json has them.
_LLAMA_NAMES = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "tie_word_embeddings": "tie_word_embeddings",
    "rope_theta": "rope_theta",
    "norm_epsilon": "rms_norm_eps",
    "initializer_range": "initializer_range",
    "dropout": "attention_dropout",
    "attention_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
}
_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "intermediate_size": "n_inner",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "n_positions",
    "tie_word_embeddings": "tie_word_embeddings",
    "norm_epsilon": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
    "dropout": "resid_pdrop",
}


def _default_intermediate_size(family: str, hidden_size: int) -> int:
    match family:
        case "gpt2":
            return 4 * hidden_size
        case "qwen3":
            return 3 * hidden_size
        case _:
            return -(-8 * hidden_size // (3 * 64)) * 64


def _check(config: ModelConfig) -> None:
    for field in (
        "hidden_size",
        "num_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    ):
        if getattr(config, field) < 1:
            raise ValueError(f"model.{field}: {getattr(config, field)} is not at least 1")
    if config.num_blocks < 1:
        raise ValueError(f"model.num_layers: {config.num_blocks} is not at least 1")
    if config.hidden_size % config.num_heads and config.family != "qwen3":
        raise ValueError(
            f"model.hidden_size: {config.hidden_size} is not a multiple of "
            f"num_heads, {config.num_heads}"
        )
    if config.num_heads % config.num_key_value_heads:
        raise ValueError(
            f"model.num_key_value_heads: {config.num_key_value_heads} does not divide "
            f"num_heads, {config.num_heads}"
        )
    if config.family == "gpt2":
        _check_gpt2(config)
    elif config.head_dim % 2:
        raise ValueError(
            f"model.head_dim: {config.head_dim} is odd; the rotary embedding turns pairs"
        )
    if not 0 <= config.dropout < 1:
        raise ValueError(f"model.dropout: {config.dropout} is not in [0, 1)")


def _check_gpt2(config: ModelConfig) -> None:
    if config.num_key_value_heads != config.num_heads:
        raise ValueError(
            f"model.num_key_value_heads: gpt2 has as many as num_heads, {config.num_heads}"
        )
    if config.head_dim * config.num_heads != config.hidden_size:
        raise ValueError(
            "model.head_dim: gpt2's is hidden_size / num_heads, "
            f"{config.hidden_size // config.num_heads}"
        )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Options under which a layer depends on more than its input."""
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("dynamic", "longrope"):
        raise ValueError(f"model.huggingface: rope_type {kind!r} depends on what was seen before")
    for option in ("use_sliding_window", "add_cross_attention"):
        if config.get(option):
            raise ValueError(f"model.huggingface: {option} is not supported; set it to false")
