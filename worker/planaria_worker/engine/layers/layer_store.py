"""The layers an engine holds, each in its version: the number of committed steps in it.

Nothing but a commit changes a layer [3]. Its version is None while that happens, so a copy that is
taken meanwhile is known to be torn, and an update that fails half-way leaves a layer that nobody
takes for whole.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping

from torch import Tensor

from planaria_worker.models.state import SLOTS, LayerState


class LayerStore:
    """The layers that the engine holds; the copy server and the control thread read it at any time.

    One thread at a time changes it: the training thread, or that of a directive under the fence.
    """

    def __init__(self) -> None:
        self._states: dict[int, LayerState] = {}
        self._versions: dict[int, int | None] = {}

    @property
    def states(self) -> Mapping[int, LayerState]:
        return self._states

    def held(self) -> dict[int, int]:
        """Versions of the layers that are not being changed."""
        versions = list(self._versions.items())
        return {layer: version for layer, version in sorted(versions) if version is not None}

    def version(self, layer: int) -> int | None:
        """Number of committed steps in the layer's tensors; None: not held, or being changed."""
        return self._versions.get(layer)

    def tensors(self, layer: int) -> dict[str, Tensor]:
        """Parameters and optimizer state by `slot/name`; KeyError: no longer held."""
        state = self._states[layer]
        return {
            f"{slot}/{name}": tensor
            for slot in SLOTS
            for name, tensor in state.layout.views(state.buffer(slot)).items()
        }

    def install(self, states: Mapping[int, LayerState], version: int) -> None:
        """Add layers, or replace them."""
        for layer, state in states.items():
            self._versions[layer] = None
            self._states[layer] = state
            self._versions[layer] = version

    def keep(self, layers: Collection[int]) -> None:
        """Drop all other layers."""
        for layer in self._states.keys() - set(layers):
            del self._versions[layer]
            del self._states[layer]

    @contextlib.contextmanager
    def updating(self, layer: int, new_version: int) -> Iterator[LayerState]:
        """Yield a layer to change; afterwards it has the new version, or none if that failed."""
        self._versions[layer] = None
        yield self._states[layer]
        self._versions[layer] = new_version


def fill(state: LayerState, tensors: Mapping[str, Tensor]) -> None:
    """Copy a layer's tensors, by the names of `LayerStore.tensors`, into a state.

    Raises:
        ValueError: a tensor is missing or has another shape.
    """
    for slot in SLOTS:
        for name, place in state.layout.views(state.buffer(slot)).items():
            values = tensors.get(f"{slot}/{name}")
            if values is None or values.shape != place.shape:
                raise ValueError(f"{slot}/{name} is missing or is not of shape {place.shape}")
            place.copy_(values)
    state.refresh()
