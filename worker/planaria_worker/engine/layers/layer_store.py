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
    """What the engine holds; read by the copy server and the control thread at any moment.

    Changes come from one thread at a time: the training thread, or a directive's under the fence.
    """

    def __init__(self) -> None:
        self._states: dict[int, LayerState] = {}
        self._versions: dict[int, int | None] = {}

    @property
    def states(self) -> Mapping[int, LayerState]:
        return self._states

    def held(self) -> dict[int, int]:
        """Versions of the layers that are whole."""
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
        """Takes in whole layers, in place of those of the same number."""
        for layer, state in states.items():
            self._versions[layer] = None
            self._states[layer] = state
            self._versions[layer] = version

    def keep(self, layers: Collection[int]) -> None:
        """Drops all other layers."""
        for layer in self._states.keys() - set(layers):
            del self._versions[layer]
            del self._states[layer]

    @contextlib.contextmanager
    def updating(self, layer: int, new_version: int) -> Iterator[LayerState]:
        """Gives a layer to be changed; it counts as whole again, and as new, if nothing fails."""
        self._versions[layer] = None
        yield self._states[layer]
        self._versions[layer] = new_version


def fill(state: LayerState, tensors: Mapping[str, Tensor]) -> None:
    """Writes a layer's tensors, as `LayerStore.tensors` names them, into a state.

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
