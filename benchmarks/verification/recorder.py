"""A plugin for pytest that writes the outcome of each test when the test is over."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.common.cells import PASSED, Record
from benchmarks.common.results import now


class Recorder:
    """Record each test, and keep the output of those that failed."""

    def __init__(
        self,
        add: Callable[[Record], None],
        is_unchanged: Callable[[], bool],
        *,
        seed: int | None,
        commit: str,
        machine: str,
        logs: Path,
    ) -> None:
        """Describe the run.

        Args:
            add: stores a record.
            is_unchanged: whether the product is still the commit's.
            seed: of all tests, if they have one.
            commit: what is tested.
            machine: where.
            logs: folder for the output of failed tests.
        """
        self._add = add
        self._is_unchanged = is_unchanged
        self._seed = seed
        self._commit = commit
        self._machine = machine
        self._logs = logs
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test after its last phase."""
        self._reports.setdefault(report.nodeid, []).append(report)
        if report.when != "teardown":
            return
        if not self._is_unchanged():
            assert self._session is not None
            self._session.shouldstop = "product code changed during the run"
            return
        reports = self._reports.pop(report.nodeid)
        outcome = _outcome(reports)
        self._add(
            Record(
                cell=report.nodeid,
                seed=self._seed,
                outcome=outcome,
                seconds=round(sum(each.duration for each in reports), 2),
                commit=self._commit,
                machine=self._machine,
                date=now(),
            )
        )
        if outcome == "failed":
            self._explain(report.nodeid, reports)

    def _explain(self, cell: str, reports: list[pytest.TestReport]) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]+", "-", cell.partition("::")[2]).strip("-")
        texts = [each.longreprtext for each in reports]
        texts += [f"== {title}\n{text}" for title, text in reports[-1].sections]
        (self._logs / f"{name}.log").write_text("\n".join(texts))


def _outcome(reports: list[pytest.TestReport]) -> str:
    outcomes = {each.outcome for each in reports}
    return next((each for each in ("failed", "skipped") if each in outcomes), PASSED)
