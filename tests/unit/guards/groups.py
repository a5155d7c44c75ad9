"""Remove the guards of communication groups that outlive a generation."""

from collections.abc import Iterable

import pytest

from planaria_coordinator.domain.engines.outcome import FenceReport
from planaria_coordinator.domain.recovery import activation
from planaria_worker.engine.groups import DataParallelGroup, GroupSpec, current_groups
from unit.guards.guard import swap


def retain_busy_groups(patch: pytest.MonkeyPatch) -> None:
    def retain(self: DataParallelGroup) -> bool:
        self._is_retained = True
        return not self.is_shut

    swap(patch, DataParallelGroup.retain, retain)


def retain_groups_that_some_name(patch: pytest.MonkeyPatch) -> None:
    def idle_groups(reports: Iterable[FenceReport]) -> tuple[str, ...]:
        return tuple(sorted({group.id for report in reports for group in report.idle_groups}))

    swap(patch, activation.idle_groups, idle_groups)


def use_vote_groups_for_gradients(patch: pytest.MonkeyPatch) -> None:
    def is_for(spec: GroupSpec, group: DataParallelGroup) -> bool:
        return set(group.members) == set(spec.members)

    swap(patch, current_groups._is_for, is_for)
