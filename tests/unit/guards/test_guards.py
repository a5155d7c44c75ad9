"""Each guard is needed: without it, the tests that are named with it fail.

tests/integration/engine/test_guards.py has those that need engine processes.
"""

import pytest

from unit.guards import (
    commit,
    coordinator,
    directives,
    groups,
    layers,
    links,
    protocol,
    silence,
    sums,
)
from unit.guards.guard import Guard, assert_needed, guards_in, parameters

GUARDS = guards_in(commit, coordinator, directives, groups, layers, links, protocol, silence, sums)


@pytest.mark.parametrize("guard", parameters(GUARDS))
def test_without_its_guard_a_scenario_fails(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_needed(guard, monkeypatch)
