"""Remove the guards of communication groups that outlive a generation."""

from collections.abc import Iterable

import pytest

from planaria_coordinator.domain.engines.outcome import FenceReport
from planaria_coordinator.domain.recovery import activation
from planaria_worker.engine.groups import DataParallelGroup, GroupSpec, current_groups
from unit.coordinator.recovery import test_who_keeps_the_step
from unit.engine import test_current_groups
from unit.guards.guard import guard, swap
from unit.worker_comm import test_group


@guard(
    "a group with an operation in flight is not retained",
    test_group.TestRetain.test_not_while_something_is_under_way,
    test_group.TestRetain.test_not_while_something_starts,
)
def retain_busy_groups(patch: pytest.MonkeyPatch) -> None:
    def retain(self: DataParallelGroup) -> bool:
        self._is_retained = True
        return not self.is_shut

    swap(patch, DataParallelGroup.retain, retain)


@guard(
    "a group is retained only where all its members name it",
    test_who_keeps_the_step.test_a_group_is_kept_where_all_its_members_name_it,
)
def retain_groups_that_some_name(patch: pytest.MonkeyPatch) -> None:
    def idle_groups(reports: Iterable[FenceReport]) -> tuple[str, ...]:
        return tuple(sorted({group.id for report in reports for group in report.idle_groups}))

    swap(patch, activation.idle_groups, idle_groups)


@guard(
    "a group for small sums is not used for gradients",
    test_current_groups.TestRetainIdle.test_a_group_for_small_sums_is_not_reopened_for_gradients,
)
def use_vote_groups_for_gradients(patch: pytest.MonkeyPatch) -> None:
    def is_for(spec: GroupSpec, group: DataParallelGroup) -> bool:
        return set(group.members) == set(spec.members)

    swap(patch, current_groups._is_for, is_for)
