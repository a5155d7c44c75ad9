"""The state of one layer: what survives a step, is copied to a replica and goes into a digest."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from planaria_worker.models.layer import Model
from planaria_worker.models.layout import LayerLayout, layer_layout

SLOTS = ("parameters", "exp_avg", "exp_avg_sq")
"""The flat float32 buffers of a LayerState, all of the same length and layout."""


@dataclass(slots=True, kw_only=True)
class LayerState:
    """Parameters and AdamW moments of one layer in flat float32 buffers (see LayerLayout).

    `compute` is what the modules compute with: the parameters themselves, or their rounding to a
    narrower type. Code that writes `parameters` (an update, a copy) calls `refresh` afterwards.
    """

    layout: LayerLayout
    parameters: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    compute_dtype: torch.dtype = torch.float32
    compute: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.compute = self.parameters
        if self.compute_dtype != torch.float32:
            self.compute = torch.empty_like(self.parameters, dtype=self.compute_dtype)
        self.refresh()

    def refresh(self) -> None:
        """Rounds the parameters to the type that is computed with, in place."""
        if self.compute is not self.parameters:
            self.compute.copy_(self.parameters)

    def buffer(self, slot: str) -> Tensor:
        """The flat buffer of one of SLOTS."""
        if slot not in SLOTS:
            raise KeyError(f"{slot!r} is not one of {', '.join(SLOTS)}")
        buffer: Tensor = getattr(self, slot)
        return buffer


def empty_state(
    layout: LayerLayout,
    *,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.float32,
) -> LayerState:
    """All zeros: what a copy from a replica fills."""

    def zeros() -> Tensor:
        return torch.zeros(layout.num_elements, device=device)

    return LayerState(
        layout=layout,
        parameters=zeros(),
        exp_avg=zeros(),
        exp_avg_sq=zeros(),
        compute_dtype=compute_dtype,
    )


def initial_state(
    model: Model,
    layer: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.float32,
) -> LayerState:
    """Step 0: every tensor follows from the seed and its name, whatever the cut of the model."""
    return filled_state(
        layer_layout(model, layer),
        model.initial_parameters(layer, seed),
        device=device,
        compute_dtype=compute_dtype,
    )


def filled_state(
    layout: LayerLayout,
    parameters: Mapping[str, Tensor],
    *,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.float32,
) -> LayerState:
    """A state with these parameters and no optimizer history.

    Raises:
        ValueError: a tensor is missing or has another shape; the message names it.
    """
    state = empty_state(layout, device=device, compute_dtype=compute_dtype)
    for tensor in layout.tensors:
        value = parameters.get(tensor.name)
        if value is None:
            raise ValueError(f"layer {layout.layer}: no tensor named {tensor.name}")
        if tuple(value.shape) != tensor.shape:
            raise ValueError(
                f"{tensor.name}: shape {tuple(value.shape)}, the model has {tensor.shape}"
            )
        tensor.view(state.parameters).copy_(value)
    state.refresh()
    return state
