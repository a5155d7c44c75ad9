"""Who holds which layers, in the forms that placement and copies ask for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planaria_planner.cost.profile import ModelProfile
from planaria_planner.templates.cost_tables import Int64Array

Holdings = Mapping[str, frozenset[int]]
"""For each node the layers whose state it holds in a version worth copying."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inventory:
    """What every node holds; made once for a plan and all its contingencies.

    Attributes:
        holdings: who holds what.
        sizes: [layer] bytes of state.
        names: [row] nodes that hold something, by name.
        rows: for each of them its row.
        holder_ranges: [layer + 1] where each layer's holders begin in the array behind it, and
            their rows, in ascending order.
        num_holders: [layer] how many of them are there.
        present: [row] whether the node is there.
        weights: [layer + 1] prefix sums of the layers' state, in units of what all are multiples
            of: small whole numbers, which floats add exactly.
        held_weights: [row, layer + 1] the same of what the node of that row holds; the last row is
            that of nodes which hold nothing.
    """

    holdings: Holdings
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    rows: Mapping[str, int]
    holder_ranges: tuple[Int64Array, Int64Array]
    num_holders: tuple[int, ...]
    present: NDArray[np.bool_]
    weights: NDArray[np.float64]
    held_weights: NDArray[np.float64]

    @classmethod
    def of(cls, profile: ModelProfile, holdings: Holdings) -> "Inventory":
        """Take stock."""
        sizes = tuple(layer.state_bytes for layer in profile.layers)
        units = np.array(sizes, dtype=np.float64) / (math.gcd(*sizes) or 1)
        names = tuple(sorted(holdings))
        held = np.zeros((len(names) + 1, len(sizes)))
        for row, node_id in enumerate(names):
            held[row, list(holdings[node_id])] = 1
        num_holders = np.count_nonzero(held, axis=0)
        first_holder = np.concatenate(([0], np.cumsum(num_holders)))
        return cls(
            holdings=holdings,
            sizes=sizes,
            names=names,
            rows={node_id: row for row, node_id in enumerate(names)},
            holder_ranges=(first_holder, np.nonzero(held.T)[1]),
            num_holders=tuple(num_holders.tolist()),
            present=np.ones(len(names), dtype=np.bool_),
            weights=np.concatenate(([0], np.cumsum(units))),
            held_weights=np.pad(np.cumsum(held * units, axis=1), ((0, 0), (1, 0))),
        )

    def without(self, lost: str) -> "Inventory":
        """Return what is left once a node is lost."""
        if lost not in self.holdings:
            return self
        gone = self.holdings[lost]
        present = self.present.copy()
        present[self.rows[lost]] = False
        return replace(
            self,
            holdings={name: layers for name, layers in self.holdings.items() if name != lost},
            num_holders=tuple(n - (i in gone) for i, n in enumerate(self.num_holders)),
            present=present,
        )

    def holders_of(self, layer: int) -> tuple[str, ...]:
        """Return the nodes that hold a layer, by name."""
        first, rows = self.holder_ranges
        here = rows[first[layer] : first[layer + 1]]
        return tuple(self.names[row] for row in here if self.present[row])

    def layers_of(self, node_id: str) -> frozenset[int]:
        """Return the layers that a node holds."""
        return self.holdings.get(node_id, frozenset())

    def held_by(self, node_ids: Sequence[str]) -> NDArray[np.float64]:
        """Return the rows of `held_weights` of these nodes."""
        nothing = len(self.held_weights) - 1
        rows = [self.rows[i] if i in self.holdings else nothing for i in node_ids]
        return self.held_weights[np.array(rows, dtype=np.int64)]
