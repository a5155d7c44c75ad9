"""Every world that a test starts is stopped after it."""

from collections.abc import AsyncIterator, Generator

import pytest

from unit.coordinator.simulation.world import World

_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
async def _stop_worlds(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """The end of a test is checked as well, unless it has failed already."""
    World.running.clear()
    yield
    if request.node.stash[_PASSED]:
        for world in tuple(World.running):
            await world.stop()
