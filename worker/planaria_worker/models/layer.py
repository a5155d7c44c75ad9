"""What a model is to the engine: a list of layers, each built on its own."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: its modules under the paths they have in the whole model, and how it runs them."""

    parts: Mapping[str, nn.Module]
    run: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedWeight:
    """A parameter used by two layers. It belongs to the first of them, its owner."""

    owner_layer: int
    owner_name: str
    user_layer: int
    user_name: str


class Model(Protocol):
    """A model cut into layers 0..num_layers-1; layer 0 takes token ids, the last gives logits."""

    @property
    def num_layers(self) -> int: ...

    @property
    def tied(self) -> TiedWeight | None: ...

    @property
    def has_dropout(self) -> bool: ...

    def build_layer(self, layer: int) -> Layer:
        """Builds one layer; the caller replaces its parameters, which may be on `meta`."""
        ...

    def output_shape(self, layer: int, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """What a layer makes of token ids [batch, sequence], or of the layer before it."""
        ...

    def kind_of(self, layer: int) -> Hashable:
        """Layers of one kind cost the same on inputs of the same shape; one is measured for all."""
        ...

    def initial_parameters(self, layer: int, seed: int) -> dict[str, Tensor]:
        """A layer's values at step 0 by name, float32 on the CPU; a tied one in its owner's."""
        ...


def replace_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Puts another parameter in the place of the one with this dotted name."""
    owner_path, _, leaf_name = name.rpartition(".")
    # Not register_parameter: recurrent layers notice an assignment, and keep a list of their own.
    setattr(module.get_submodule(owner_path), leaf_name, parameter)
