"""llama, qwen3 and gpt2, layer by layer, from the modules of Hugging Face transformers.

Only single modules are built, never the whole model: they depend on no more than the configuration,
keep their names, and chained they give bitwise the logits of the whole (tests hold this).

Transformers takes seconds to import: only where a family is at hand this module is imported.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, LlamaConfig, PreTrainedConfig, Qwen3Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
)

from planaria_common.model_config import ModelConfig
from planaria_worker.engine.numerics.pins import ATTENTION_IMPLEMENTATION
from planaria_worker.models.initialize import initial_tensor
from planaria_worker.models.layer import Layer, Model, TiedWeight
from planaria_worker.models.layout import layer_layout


def transformer(config: ModelConfig) -> Model:
    """The model that a configuration describes."""
    family = Gpt2 if config.family == "gpt2" else Llama
    return family(config, huggingface_config(config))


def huggingface_config(config: ModelConfig) -> PreTrainedConfig:
    """The same configuration as transformers has it; written next to exported weights."""
    if config.huggingface_json:
        stored: dict[str, Any] = json.loads(config.huggingface_json)
        classes = {"gpt2": GPT2Config, "llama": LlamaConfig, "qwen3": Qwen3Config}
        result = classes[config.family].from_dict(stored)
    elif config.family == "gpt2":
        result = _gpt2_config(config)
    else:
        result = _llama_config(config)
    result._attn_implementation = ATTENTION_IMPLEMENTATION
    return result


def _gpt2_config(config: ModelConfig) -> PreTrainedConfig:
    return GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.max_position_embeddings,
        n_embd=config.hidden_size,
        n_layer=config.num_blocks,
        n_head=config.num_heads,
        n_inner=config.intermediate_size,
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout,
        layer_norm_epsilon=config.norm_epsilon,
        initializer_range=config.initializer_range,
        tie_word_embeddings=config.tie_word_embeddings,
        bos_token_id=None,
        eos_token_id=None,
        architectures=["GPT2LMHeadModel"],
    )


def _llama_config(config: ModelConfig) -> PreTrainedConfig:
    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_blocks,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "initializer_range": config.initializer_range,
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tie_word_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": config.attention_bias,
        "attention_dropout": config.dropout,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if config.family == "qwen3":
        return Qwen3Config(**fields, architectures=["Qwen3ForCausalLM"])
    return LlamaConfig(**fields, mlp_bias=config.mlp_bias, architectures=["LlamaForCausalLM"])


@dataclass(frozen=True, eq=False)
class _Transformer(ABC):
    """What the families share."""

    config: ModelConfig
    huggingface: PreTrainedConfig

    embedding_name = ""

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    @property
    def has_dropout(self) -> bool:
        return self.config.dropout > 0

    @property
    def tied(self) -> TiedWeight | None:
        if not self.config.tie_word_embeddings:
            return None
        return TiedWeight(
            owner_layer=0,
            owner_name=self.embedding_name,
            user_layer=self.num_layers - 1,
            user_name="lm_head.weight",
        )

    def build_layer(self, layer: int) -> Layer:
        if not 0 <= layer < self.num_layers:
            raise IndexError(f"layer {layer} is not in 0..{self.num_layers - 1}")
        with torch.device("meta"):
            if layer == 0:
                return self._embedding()
            if layer == self.num_layers - 1:
                return self._head()
            return self._block(layer - 1)

    def output_shape(self, layer: int, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        is_head = layer == self.num_layers - 1
        width = self.config.vocab_size if is_head else self.config.hidden_size
        return (*input_shape[:2], width)

    def kind_of(self, layer: int) -> Hashable:
        return layer if layer in (0, self.num_layers - 1) else "block"

    def initial_parameters(self, layer: int, seed: int) -> dict[str, Tensor]:
        return {
            tensor.name: initial_tensor(
                seed, tensor.name, tensor.shape, self._initial_deviation(tensor.name)
            )
            for tensor in layer_layout(self, layer).tensors
        }

    def _initial_deviation(self, name: str) -> float:  # noqa: ARG002 - of gpt2 it depends on it
        return self.config.initializer_range

    @abstractmethod
    def _embedding(self) -> Layer: ...

    @abstractmethod
    def _block(self, index: int) -> Layer: ...

    @abstractmethod
    def _head(self) -> Layer: ...

    def _output_projection(self) -> nn.Linear:
        return nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)


@dataclass(frozen=True, eq=False)
class Llama(_Transformer):
    """llama, and qwen3, which differs by the norms of queries and keys inside its block."""

    _rotary_tables: dict[tuple[int, torch.dtype, torch.device], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False
    )

    embedding_name = "model.embed_tokens.weight"

    def _embedding(self) -> Layer:
        tokens = nn.Embedding(self.config.vocab_size, self.config.hidden_size)
        return Layer(parts={"model.embed_tokens": tokens}, run=tokens)

    def _block(self, index: int) -> Layer:
        block_type = Qwen3DecoderLayer if self.config.family == "qwen3" else LlamaDecoderLayer
        block = block_type(self.huggingface, index)

        def run(hidden: Tensor) -> Tensor:
            result: Tensor = block(
                hidden, attention_mask=None, position_embeddings=self._positions(hidden)
            )
            return result

        return Layer(parts={f"model.layers.{index}": block}, run=run)

    def _head(self) -> Layer:
        norm_type = Qwen3RMSNorm if self.config.family == "qwen3" else LlamaRMSNorm
        norm = norm_type(self.config.hidden_size, eps=self.config.norm_epsilon)
        projection = self._output_projection()
        return Layer(
            parts={"model.norm": norm, "lm_head": projection},
            run=lambda hidden: projection(norm(hidden)),
        )

    def _positions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [1, sequence, head_dim]: constants, made once for all layers."""
        key = (hidden.shape[1], hidden.dtype, hidden.device)
        if key not in self._rotary_tables:
            is_qwen3 = self.config.family == "qwen3"
            rotary_type = Qwen3RotaryEmbedding if is_qwen3 else LlamaRotaryEmbedding
            rotary = rotary_type(self.huggingface).to(hidden.device)
            positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
            self._rotary_tables[key] = rotary(hidden.detach(), positions)
        return self._rotary_tables[key]


class Gpt2(_Transformer):
    """gpt2."""

    embedding_name = "transformer.wte.weight"

    def _initial_deviation(self, name: str) -> float:
        """GPT-2 scales the projections into the residual stream by 1/sqrt(2 blocks)."""
        deviation = super()._initial_deviation(name)
        into_residual = name.endswith("c_proj.weight")
        return deviation * (2 * self.config.num_blocks) ** -0.5 if into_residual else deviation

    def _embedding(self) -> Layer:
        tokens = nn.Embedding(self.config.vocab_size, self.config.hidden_size)
        positions = nn.Embedding(self.config.max_position_embeddings, self.config.hidden_size)
        drop = nn.Dropout(self.huggingface.embd_pdrop)

        def run(token_ids: Tensor) -> Tensor:
            indices = torch.arange(token_ids.shape[1], device=token_ids.device).unsqueeze(0)
            result: Tensor = drop(tokens(token_ids) + positions(indices))
            return result

        parts = {"transformer.wte": tokens, "transformer.wpe": positions, "transformer.drop": drop}
        return Layer(parts=parts, run=run)

    def _block(self, index: int) -> Layer:
        block = GPT2Block(self.huggingface, layer_idx=index)

        def run(hidden: Tensor) -> Tensor:
            result: Tensor = block(hidden, attention_mask=None)
            return result

        return Layer(parts={f"transformer.h.{index}": block}, run=run)

    def _head(self) -> Layer:
        norm = nn.LayerNorm(self.config.hidden_size, eps=self.config.norm_epsilon)
        projection = self._output_projection()
        return Layer(
            parts={"transformer.ln_f": norm, "lm_head": projection},
            run=lambda hidden: projection(norm(hidden)),
        )
