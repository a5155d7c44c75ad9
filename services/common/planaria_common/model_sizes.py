"""A model's configuration, and the sizes of its layers that follow from it, without torch.

The coordinator plans from these sizes at submission; the worker builds the very same configuration.
Layer 0 is the embedding, layers 1..num_blocks the decoder blocks, the last one the final norm and
the language-modelling head.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

Family = Literal["gpt2", "llama", "qwen3"]
FAMILIES: tuple[Family, ...] = get_args(Family)
Dtype = Literal["float32", "bfloat16"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize:
    """What one layer takes."""

    name: str
    num_parameters: int
    """Of the layer itself: a tied parameter counts in its first layer only."""
    parameter_bytes: int
    """Of every parameter that hosting this layer brings, the tied embedding's layer included."""
    state_bytes: int
    """Parameters, gradients and optimizer state together."""
    activation_bytes: int
    """Kept for the backward pass, per microbatch in flight."""
    output_bytes: int
    """Sent to the next layer, per microbatch; none for the last layer."""
    forward_flops: int
    """Per microbatch; the backward pass takes twice as many."""


def layer_sizes(
    config: ModelConfig,
    microbatch_size: int,
    sequence_length: int,
    *,
    dtype: Dtype = "float32",
    reproducible: bool = True,
    activation_checkpointing: bool = False,
) -> tuple[LayerSize, ...]:
    """Sizes of all `config.num_layers` layers, in layer order.

    Raises:
        ValueError: the sequences are longer than the model's positions.
    """
    if sequence_length > config.max_position_embeddings:
        raise ValueError(
            f"data.sequence_length: {sequence_length} is more than the model's "
            f"max_position_embeddings, {config.max_position_embeddings}"
        )
    num_tokens = microbatch_size * sequence_length
    width = 2 if dtype == "bfloat16" else 4
    embedding = _embedding_parameters(config)
    block = _block_parameters(config)
    head = _norm_parameters(config) + (
        0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    )
    hidden_bytes = num_tokens * config.hidden_size * width
    bytes_per_parameter = _state_bytes_per_parameter(reproducible)

    def size(name: str, own: int, hosted: int, activations: int, flops: int) -> LayerSize:
        return LayerSize(
            name=name,
            num_parameters=own,
            parameter_bytes=4 * hosted,
            state_bytes=bytes_per_parameter * hosted,
            activation_bytes=activations,
            output_bytes=0 if name == "head" else hidden_bytes,
            forward_flops=flops,
        )

    block_activations = (
        hidden_bytes
        if activation_checkpointing
        else _block_activation_bytes(config, num_tokens, sequence_length, width)
    )
    block_flops = num_tokens * (
        2 * _block_matrix_parameters(config)
        + 4 * sequence_length * config.num_heads * config.head_dim
    )
    return (
        size(
            "embedding",
            embedding,
            embedding,
            _embedding_activation_bytes(config, num_tokens, sequence_length, width),
            0,
        ),
        *(
            size(f"block {index}", block, block, block_activations, block_flops)
            for index in range(config.num_blocks)
        ),
        size(
            "head",
            head,
            head + (embedding if config.tie_word_embeddings else 0),
            _head_activation_bytes(config, num_tokens, width),
            2 * num_tokens * config.hidden_size * config.vocab_size,
        ),
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


def _norm_parameters(config: ModelConfig) -> int:
    return config.hidden_size * (2 if config.family == "gpt2" else 1)


def _embedding_parameters(config: ModelConfig) -> int:
    positions = config.max_position_embeddings if config.family == "gpt2" else 0
    return (config.vocab_size + positions) * config.hidden_size


def _projection_size(config: ModelConfig) -> tuple[int, int]:
    """Widths of the queries, and of the keys or the values."""
    return config.num_heads * config.head_dim, config.num_key_value_heads * config.head_dim


def _num_mlp_matrices(config: ModelConfig) -> int:
    return 2 if config.family == "gpt2" else 3


def _block_matrix_parameters(config: ModelConfig) -> int:
    query, key_value = _projection_size(config)
    attention = config.hidden_size * (2 * query + 2 * key_value)
    return attention + _num_mlp_matrices(config) * config.hidden_size * config.intermediate_size


def _block_parameters(config: ModelConfig) -> int:
    query, key_value = _projection_size(config)
    total = _block_matrix_parameters(config) + 2 * _norm_parameters(config)
    if config.attention_bias:
        total += query + 2 * key_value + config.hidden_size
    if config.mlp_bias:
        up = config.intermediate_size * (_num_mlp_matrices(config) - 1)
        total += up + config.hidden_size
    if config.family == "qwen3":
        total += 2 * config.head_dim
    return total


def _state_bytes_per_parameter(reproducible: bool) -> int:
    master_and_moments = 12
    gradient_sum = 8 if reproducible else 4
    gradient = 4  # bfloat16: 2, and 2 for the rounded copy of the parameters
    return master_and_moments + gradient_sum + gradient


def _embedding_activation_bytes(
    config: ModelConfig, num_tokens: int, sequence_length: int, width: int
) -> int:
    """The indices, int64, and what gpt2's dropout multiplies with."""
    if config.family != "gpt2":
        return 8 * num_tokens
    masks = num_tokens * config.hidden_size * width if config.dropout else 0
    return 8 * (num_tokens + sequence_length) + masks


def _block_activation_bytes(
    config: ModelConfig, num_tokens: int, sequence_length: int, width: int
) -> int:
    """What autograd keeps on the CPU; a test counts the saved tensors."""
    query, key_value = _projection_size(config)
    attention = 2 * query + 2 * key_value  # queries, keys, values and the result
    if config.family == "gpt2":
        values = 4 * config.hidden_size + 5 * config.intermediate_size
        norms = 4 * width  # means and deviations of two norms
    else:
        # Of each norm its input, in float32, its scaled form and its output.
        values = 4 * config.hidden_size + 4 * config.intermediate_size
        norms = 4 * 2 * config.hidden_size + 4 * 2
    if config.family == "qwen3":
        values += query + key_value
        norms += 4 * (query + key_value) + 4 * (config.num_heads + config.num_key_value_heads)
    normalizers = 4 * config.num_heads  # of the softmax
    per_token = width * (values + attention) + norms + normalizers
    return num_tokens * (per_token + _dropout_bytes(config, sequence_length, width))


def _dropout_bytes(config: ModelConfig, sequence_length: int, width: int) -> int:
    """What dropout in a block keeps more, per token.

    Attention then goes by its definition: it keeps the probabilities of every pair of positions,
    and keys and values as often as there are queries, instead of the normalizers.
    """
    if not config.dropout:
        return 0
    query, key_value = _projection_size(config)
    attention = config.num_heads * (12 * sequence_length - 4)
    attention += 2 * (query - key_value) * width
    if width < 4:
        attention += 6 * query  # computed in float32
    masks = 2 * config.hidden_size * width if config.family == "gpt2" else 0
    return attention + masks


def _head_activation_bytes(config: ModelConfig, num_tokens: int, width: int) -> int:
    """The norm, and for the loss the targets and the logarithms of the probabilities."""
    if config.family == "gpt2":
        norm = 2 * config.hidden_size * width + 2 * width
    else:
        norm = config.hidden_size * (2 * width + 4) + 4
    return num_tokens * (norm + 4 * config.vocab_size + 8) + 4
