"""The long tests, and where their results are kept."""

from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Tests that are run together; one test is a cell."""

    name: str
    about: str
    arguments: tuple[str, ...]
    """What pytest is given."""
    has_seed: bool = False

    @property
    def results(self) -> Path:
        return RESULTS / f"{self.name}.json"


_MATRIX = "tests/e2e/matrix"
_SEARCHES = (
    "tests/unit/coordinator/protocol/test_protocol_search.py",
    "tests/unit/guards",
    "tests/unit/coordinator/protocol/test_protocol_stateful.py",
    "tests/unit/engine/step/test_step_search.py",
)

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            name="matrix",
            about="every place in the engine x every way to fail x how many fail",
            arguments=(_MATRIX, "-m", "not gpu"),
            has_seed=True,
        ),
        Suite(
            name="searches",
            about="every order of events of small jobs: the protocol, and the step of an engine",
            arguments=(*_SEARCHES, "-m", "not gpu"),
        ),
        Suite(
            name="slow",
            about="every other slow test",
            arguments=(
                "tests",
                "-m",
                "slow and not gpu",
                *(f"--ignore={path}" for path in (_MATRIX, *_SEARCHES)),
            ),
        ),
    )
}
