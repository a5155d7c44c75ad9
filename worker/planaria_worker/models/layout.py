"""Where a layer's tensors lie in its flat buffers.

Every layer keeps its parameters, its optimizer state and its gradient sum in one flat buffer each,
so that a reduction, a copy or an update is one operation. Each tensor starts at a multiple of
ALIGNMENT elements: vector kernels see aligned operands whatever else the layer holds.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from planaria_worker.models.layer import Model

ALIGNMENT = 32
"""Elements; 64 bytes of bfloat16, 128 of float32. The gaps are zero and stay zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """One tensor's place in the flat buffer, in elements."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    def view(self, flat: Tensor) -> Tensor:
        """This tensor within a flat buffer, sharing its memory."""
        return flat[self.offset : self.offset + self.num_elements].view(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLayout:
    """The tensors of one layer, sorted by name, and the length of its flat buffers."""

    layer: int
    tensors: tuple[TensorLayout, ...]
    num_elements: int

    @property
    def num_parameters(self) -> int:
        """Without the gaps between tensors."""
        return sum(tensor.num_elements for tensor in self.tensors)

    def __getitem__(self, name: str) -> TensorLayout:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(f"layer {self.layer} has no tensor {name!r}")

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """All tensors within a flat buffer, by name."""
        return {tensor.name: tensor.view(flat) for tensor in self.tensors}


def layer_layout(model: Model, layer: int) -> LayerLayout:
    """The layout of one layer; a tied parameter is only in its owner's."""
    with torch.device("meta"):
        parts = model.build_layer(layer).parts
    tied = model.tied
    shapes = {
        f"{path}.{name}": tuple(parameter.shape)
        for path, module in parts.items()
        for name, parameter in module.named_parameters()
    }
    if tied is not None and layer == tied.user_layer:
        del shapes[tied.user_name]
    tensors = []
    offset = 0
    for name in sorted(shapes):
        tensors.append(TensorLayout(name=name, shape=shapes[name], offset=offset))
        offset += -(-prod(shapes[name]) // ALIGNMENT) * ALIGNMENT
    return LayerLayout(layer=layer, tensors=tuple(tensors), num_elements=offset)
