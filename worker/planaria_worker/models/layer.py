"""What a model is to the engine: a list of layers, each built on its own."""

from collections.abc import Callable, Mapping
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

    def initial_deviation(self, layer: int, name: str) -> float:
        """Standard deviation of the initial values of a matrix."""
        ...
