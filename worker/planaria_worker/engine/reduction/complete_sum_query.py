"""The owners in each group tell each other which sums they have complete.

Needed when an earlier generation may have left complete sums (`complete_sums`). No sum of a group
starts before the answer, since the answer says what each owner adds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from planaria_worker.engine.groups import DataParallelGroup, Work, own_stream, require_open
from planaria_worker.engine.reduction.complete_sums import NOBODY, Holder, find_holder


class CompleteSumQuery:
    """The questions and answers of one attempt."""

    def __init__(self, device: torch.device) -> None:
        """Ask nothing yet: no owner has a complete sum.

        Args:
            device: of the sums.
        """
        self._device = device
        self._asked: dict[DataParallelGroup, _Question] = {}
        self._holders: dict[int, Holder] = {}

    def ask(
        self,
        layers: Mapping[DataParallelGroup, Sequence[int]],
        num_complete: Mapping[int, int],
        check: Callable[[], None],
    ) -> None:
        """Tell the other owners how much of each layer is complete here; do not wait.

        Args:
            layers: that each group sums; groups and layers in the same order on all owners.
            num_complete: elements of each layer's sum that are complete here.
            check: raises FencedError when nothing may start any more.
        """
        self._holders = {  # the answers replace this where there are other owners
            layer: Holder(rank=0, num_elements=number) for layer, number in num_complete.items()
        }
        for group, own in layers.items():
            check()
            table = torch.zeros((group.size, len(own)), dtype=torch.int64)
            table[group.rank] = torch.tensor([num_complete.get(layer, 0) for layer in own])
            table = table.to(self._device, non_blocking=True)
            work = group.iall_reduce(table)
            self._asked[group] = _Question(layers=tuple(own), table=table, work=work)

    def is_unheard(self, group: DataParallelGroup | None) -> bool:
        """Whether a group was asked and has not answered."""
        return group in self._asked

    def hear_answered(self) -> None:
        """Read the answers that have arrived; do not wait."""
        self._hear([group for group, question in self._asked.items() if question.work.is_over])

    def hear_all(self) -> None:
        """Wait for every answer.

        Raises:
            GroupBroken: an owner is gone, or a group was shut.
        """
        self._hear([*self._asked])

    def holder(self, layer: int) -> Holder:
        """Return which rank adds the complete part of a layer; rank 0 if this engine is alone."""
        return self._holders.get(layer, NOBODY)

    def _hear(self, groups: Iterable[DataParallelGroup]) -> None:
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
    """Complete elements by rank and layer: [owners, layers]."""
    work: Work
