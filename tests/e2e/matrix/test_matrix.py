"""Whatever fails wherever: the same model, each microbatch once, and nobody else disturbed.

A few cases are in `make test`. `python -m benchmarks.verification matrix` runs all of them, goes on
where it was interrupted, and writes the outcomes. PLANARIA_MATRIX_SEED chooses other victims.
"""

import sys
from random import Random

import pytest

from benchmarks.oracle.reference import ReferenceResult
from e2e.matrix.checks import check
from e2e.matrix.conftest import SEED
from e2e.matrix.scenario import Scenario
from e2e.matrix.table import CASES, Case, Count
from planaria.job import JobSpec
from support.network import Network, NetworkError
from support.pool import Pool

pytestmark = [pytest.mark.e2e]

DRAWN_FROM = (
    ("forward", "backward", "waiting-for-a-neighbour", "in-all-reduce"),
    ("before-the-exchange", "after-the-exchange", "before-the-update"),
    ("rebuilding", "staging", "following", "serving-a-follower", "switching", "joining"),
)
"""Places within the passes, in the commit, and in a change of the plan."""


def _draw(random: Random) -> list[Case]:
    """One of each that is over quickly, and one of all others: deadlines, two, a second one."""
    quick = [case for case in CASES if case.action.is_quick and case.count is Count.ONE]
    drawn = [
        random.choice([case for case in quick if case.place.name in places])
        for places in DRAWN_FROM
    ]
    return [*drawn, random.choice([case for case in CASES if case not in quick])]


SAMPLE = _draw(Random(SEED))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=() if case in SAMPLE else pytest.mark.slow)
        for case in CASES
    ],
)
def test_a_failure_is_invisible_to_the_model(
    network: Network | NetworkError,
    pool: Pool,
    spec: JobSpec,
    expected: ReferenceResult,
    case: Case,
) -> None:
    """[1, 2, 4, 5, 6, 8]"""
    if case.action.needs_network and isinstance(network, NetworkError):
        pytest.skip(f"no network namespaces: {network}")
    try:
        played = Scenario(pool, spec, case, case.random(SEED)).play()
        check(pool, played, expected)
    except BaseException:
        sys.stderr.write(pool.describe_newest_job())
        raise
