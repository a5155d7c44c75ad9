"""Who has the whole sum of which layer: the owners in each group tell each other.

Asked where another generation may have left somebody what is whole (`holdings`); no sum of a group
starts before its answer is heard, since that says who adds what.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from planaria_worker.engine.groups import SumGroup, Work, own_stream, require_open
from planaria_worker.engine.reduction.complete_sums import NOBODY, Holder, find_holder


class CompleteSumQuery:
    """What one attempt asks, and has heard."""

    def __init__(self, device: torch.device) -> None:
        """Nothing is asked: nobody has anything whole.

        Args:
            device: what is summed is there.
        """
        self._device = device
        self._asked: dict[SumGroup, _Question] = {}
        self._holders: dict[int, Holder] = {}

    def ask(
        self,
        layers: Mapping[SumGroup, Sequence[int]],
        num_whole: Mapping[int, int],
        check: Callable[[], None],
    ) -> None:
        """Tells the other owners how much of each layer is whole here; waits for nobody.

        Args:
            layers: those that a group sums, groups and layers in the one order of all owners.
            num_whole: elements of each layer's sum that are whole here.
            check: raises FencedError when nothing may start any more.
        """
        self._holders = {  # what is heard takes the place of this, where there are other owners
            layer: Holder(rank=0, num_elements=number) for layer, number in num_whole.items()
        }
        for group, own in layers.items():
            check()
            table = torch.zeros((group.size, len(own)), dtype=torch.int64)
            table[group.rank] = torch.tensor([num_whole.get(layer, 0) for layer in own])
            table = table.to(self._device, non_blocking=True)
            work = group.iall_reduce(table)
            self._asked[group] = _Question(layers=tuple(own), table=table, work=work)

    def is_unheard(self, group: SumGroup | None) -> bool:
        """Whether a group was asked, and its answer is yet to be heard."""
        return group in self._asked

    def hear_answered(self) -> None:
        """Hears those that have answered; waits for nobody."""
        self._hear([group for group, question in self._asked.items() if question.work.is_over])

    def hear_all(self) -> None:
        """Waits for every answer.

        Raises:
            GroupBroken: an owner is gone, or a group was shut.
        """
        self._hear([*self._asked])

    def holder(self, layer: int) -> Holder:
        """Who adds what is whole of a layer; of a layer that this engine has alone: rank 0."""
        return self._holders.get(layer, NOBODY)

    def _hear(self, groups: Iterable[SumGroup]) -> None:
        for group in groups:
            question = self._asked.pop(group)
            with own_stream(self._device):
                question.work.wait()
                columns = question.table.T.tolist()
            require_open(group, "an all-reduce")
            self._holders.update(zip(question.layers, map(find_holder, columns), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Question:
    """What the owners in a group tell each other."""

    layers: tuple[int, ...]
    table: Tensor
    """Elements that are whole, by rank and layer: [owners, layers]."""
    work: Work
