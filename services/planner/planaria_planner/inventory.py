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
        weights: [layer] the bytes of its state, divided by what all of them are multiples of.
        matrix: [row, layer] 1 where the node of that row holds the layer; the last row is all 0.
        rows: for each node its row.
    """

    holdings: Holdings
    holders: Holders
    weights: NDArray[np.float64]
    matrix: NDArray[np.float64]
    rows: Mapping[str, int]

    @classmethod
    def of(cls, profile: ModelProfile, holdings: Holdings) -> "Inventory":
        """Take stock."""
        sizes = [layer.state_bytes for layer in profile.layers]
        weights = np.array(sizes, dtype=np.float64) / (math.gcd(*sizes) or 1)
        rows = {node_id: row for row, node_id in enumerate(sorted(holdings))}
        matrix = np.zeros((len(rows) + 1, len(sizes)))
        holders: dict[int, list[str]] = {}
        for node_id, row in rows.items():
            matrix[row, list(holdings[node_id])] = 1
            for layer in holdings[node_id]:
                holders.setdefault(layer, []).append(node_id)
        return cls(holdings=holdings, holders=holders, weights=weights, matrix=matrix, rows=rows)

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
        """Return [node, layer] 1 where a node holds a layer, else 0."""
        nothing = len(self.matrix) - 1
        rows = [self.rows[i] if i in self.holdings else nothing for i in node_ids]
        held: NDArray[np.float64] = self.matrix[rows]
        return held
