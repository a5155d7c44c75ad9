"""The sizes of a model's layers, which follow from its configuration, without torch.

The coordinator plans from them at submission. Layer 0 is the embedding, layers 1..num_blocks the
decoder blocks, the last one the final norm and the language-modelling head.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from planaria_common.model_config import ModelConfig

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize:
    """What one layer takes."""

    name: str
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
    work = _Work(
        config=config,
        num_tokens=microbatch_size * sequence_length,
        sequence_length=sequence_length,
        width=2 if dtype == "bfloat16" else 4,
        state_bytes_per_parameter=_state_bytes_per_parameter(reproducible),
        activation_checkpointing=activation_checkpointing,
    )
    return _embedding(work), *_blocks(work), _head(work)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What a layer does with a microbatch."""

    config: ModelConfig
    num_tokens: int
    sequence_length: int
    width: int
    """Bytes of a value of an activation."""
    state_bytes_per_parameter: int
    activation_checkpointing: bool

    @property
    def hidden_bytes(self) -> int:
        """What goes from layer to layer."""
        return self.num_tokens * self.config.hidden_size * self.width


def _embedding(work: _Work) -> LayerSize:
    num_parameters = _embedding_parameters(work.config)
    return LayerSize(
        name="embedding",
        parameter_bytes=4 * num_parameters,
        state_bytes=work.state_bytes_per_parameter * num_parameters,
        activation_bytes=_embedding_activation_bytes(work),
        output_bytes=work.hidden_bytes,
        forward_flops=0,
    )


def _blocks(work: _Work) -> Iterator[LayerSize]:
    config = work.config
    num_parameters = _block_parameters(config)
    attention_flops = 4 * work.sequence_length * config.num_heads * config.head_dim
    block = LayerSize(
        name="block",
        parameter_bytes=4 * num_parameters,
        state_bytes=work.state_bytes_per_parameter * num_parameters,
        activation_bytes=work.hidden_bytes
        if work.activation_checkpointing
        else _block_activation_bytes(work),
        output_bytes=work.hidden_bytes,
        forward_flops=work.num_tokens * (2 * _block_matrix_parameters(config) + attention_flops),
    )
    for index in range(config.num_blocks):
        yield replace(block, name=f"block {index}")


def _head(work: _Work) -> LayerSize:
    config = work.config
    norm, matrix = _norm_parameters(config), config.vocab_size * config.hidden_size
    is_tied = config.tie_word_embeddings
    num_parameters = norm + (_embedding_parameters(config) if is_tied else matrix)
    return LayerSize(
        name="head",
        parameter_bytes=4 * num_parameters,
        state_bytes=work.state_bytes_per_parameter * num_parameters,
        activation_bytes=_head_activation_bytes(work),
        output_bytes=0,
        forward_flops=2 * work.num_tokens * matrix,
    )


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


def _embedding_activation_bytes(work: _Work) -> int:
    """The indices, int64, and what gpt2's dropout multiplies with."""
    if work.config.family != "gpt2":
        return 8 * work.num_tokens
    masks = work.hidden_bytes if work.config.dropout else 0
    return 8 * (work.num_tokens + work.sequence_length) + masks


def _block_activation_bytes(work: _Work) -> int:
    """What autograd keeps on the CPU; a test counts the saved tensors."""
    config, width = work.config, work.width
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
    return work.num_tokens * (per_token + _dropout_bytes(work))


def _dropout_bytes(work: _Work) -> int:
    """What dropout in a block keeps more, per token.

    Attention then goes by its definition: it keeps the probabilities of every pair of positions,
    and keys and values as often as there are queries, instead of the normalizers.
    """
    config, width = work.config, work.width
    if not config.dropout:
        return 0
    query, key_value = _projection_size(config)
    attention = config.num_heads * (12 * work.sequence_length - 4)
    attention += 2 * (query - key_value) * width
    if width < 4:
        attention += 6 * query  # computed in float32
    masks = 2 * config.hidden_size * width if config.family == "gpt2" else 0
    return attention + masks


def _head_activation_bytes(work: _Work) -> int:
    """The norm, and for the loss the targets and the logarithms of the probabilities."""
    config, width = work.config, work.width
    if config.family == "gpt2":
        norm = 2 * config.hidden_size * width + 2 * width
    else:
        norm = config.hidden_size * (2 * width + 4) + 4
    return work.num_tokens * (norm + 4 * config.vocab_size + 8) + 4
