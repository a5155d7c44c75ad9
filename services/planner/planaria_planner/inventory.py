"""Who holds which layers, in the forms that placement and copies ask for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planaria_planner.profile import ModelProfile

Holdings = Mapping[str, frozenset[int]]
"""For each node the layers whose state it holds in a version worth copying."""

Holders = Mapping[int, Sequence[str]]
"""For each layer that some node holds, its holders in order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inventory:
    """What every node holds; made once for a plan and all its contingencies.

    Attributes:
        holdings: who holds what.
        holders: the same by layer.
        weights: [layer + 1] prefix sums of the layers' state, in units of what all are multiples
            of: small whole numbers, which floats add exactly.
        held_weights: [row, layer + 1] the same of what the node of that row holds; the last row is
            that of nodes which hold nothing.
        rows: for each node its row.
    """

    holdings: Holdings
    holders: Holders
    weights: NDArray[np.float64]
    held_weights: NDArray[np.float64]
    rows: Mapping[str, int]

    @classmethod
    def of(cls, profile: ModelProfile, holdings: Holdings) -> "Inventory":
        """Take stock."""
        sizes = [layer.state_bytes for layer in profile.layers]
        units = np.array(sizes, dtype=np.float64) / (math.gcd(*sizes) or 1)
        rows = {node_id: row for row, node_id in enumerate(sorted(holdings))}
        held = np.zeros((len(rows) + 1, len(sizes)))
        holders: dict[int, list[str]] = {}
        for node_id, row in rows.items():
            held[row, list(holdings[node_id])] = 1
            for layer in holdings[node_id]:
                holders.setdefault(layer, []).append(node_id)
        return cls(
            holdings=holdings,
            holders=holders,
            weights=np.concatenate(([0], np.cumsum(units))),
            held_weights=np.pad(np.cumsum(held * units, axis=1), ((0, 0), (1, 0))),
            rows=rows,
        )

    def without(self, lost: str) -> "Inventory":
        """Return what is left once a node is lost."""
        gone = {
            layer: [node_id for node_id in self.holders[layer] if node_id != lost]
            for layer in self.layers_of(lost)
        }
        return replace(
            self,
            holdings={name: layers for name, layers in self.holdings.items() if name != lost},
            holders={**self.holders, **gone},
        )

    def layers_of(self, node_id: str) -> frozenset[int]:
        """Return the layers that a node holds."""
        return self.holdings.get(node_id, frozenset())

    def held_by(self, node_ids: Sequence[str]) -> NDArray[np.float64]:
        """Return the rows of `held_weights` of these nodes."""
        nothing = len(self.held_weights) - 1
        rows = [self.rows[i] if i in self.holdings else nothing for i in node_ids]
        return self.held_weights[np.array(rows, dtype=np.int64)]
