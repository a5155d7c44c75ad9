"""What the copy server needs of the engine's layers."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class LayerSource(Protocol):
    """The layers that an engine holds. Called by the server's threads, beside the training thread.

    A reader takes the version, reads, and takes the version again: if it is the same, what was read
    belongs to it. This holds when an update makes the version None before it changes the first
    byte, and sets the new one after the last.
    """

    def version(self, layer: int) -> int | None:
        """Number of committed steps in the layer's tensors; None: not held, or being changed."""
        ...

    def tensors(self, layer: int) -> Mapping[str, Tensor]:
        """Parameters and optimizer state of a layer, by name; KeyError: no longer held."""
        ...
