"""A long run can be ended at any moment, and the next one runs only what is missing or failed."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common.cells import Product, Record, Results
from benchmarks.verification.recorder import Recorder
from benchmarks.verification.suites import SUITES
from benchmarks.verification.summary import summarise


def commit(root: Path, path: str, text: str) -> str:
    """Commit a file, and return the commit."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", path)):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    return Product(root).commit


def record(cell: str, commit: str, outcome: str = "passed", seed: int | None = 1) -> Record:
    return Record(
        cell=cell,
        seed=seed,
        outcome=outcome,
        seconds=1.5,
        commit=commit,
        machine="a machine",
        date="2026-01-01T00:00:00+00:00",
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    commit(root, "worker/engine.py", "a = 1")
    return root


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "matrix.json"


def test_a_passed_cell_counts_until_product_code_changes(root: Path, path: Path) -> None:
    results = Results(path)
    results.add(record("a", Product(root).commit))
    commit(root, "tests/test_it.py", "b = 1")
    commit(root, "worker/README.md", "words")
    assert results.find("a", 1, Product(root))
    commit(root, "worker/engine.py", "a = 2")
    assert not results.find("a", 1, Product(root))


def test_product_code_that_is_not_committed_counts_as_changed(root: Path, path: Path) -> None:
    results = Results(path)
    results.add(record("a", Product(root).commit))
    (root / "worker/engine.py").write_text("a = 3")
    assert not results.find("a", 1, Product(root))
    with pytest.raises(SystemExit, match="commit your changes"):
        _ = Product(root).commit


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_cell_that_did_not_pass_is_run_again(root: Path, path: Path, outcome: str) -> None:
    results = Results(path)
    results.add(record("a", Product(root).commit, outcome))
    assert not results.find("a", 1, Product(root))


def test_a_cell_passed_with_another_seed_or_an_unknown_commit_is_run_again(
    root: Path, path: Path
) -> None:
    results = Results(path)
    results.add(record("a", Product(root).commit))
    results.add(record("b", "0123456789"))
    assert not results.find("a", 2, Product(root))
    assert not results.find("b", 1, Product(root))
    assert not results.find("c", 1, Product(root))


def test_each_record_is_in_the_file_at_once_and_the_newest_one_counts(path: Path) -> None:
    results = Results(path)
    results.add(record("b", "1", "failed"))
    results.add(record("a", "1"))
    results.add(record("b", "2"))
    assert Results(path).records == [record("a", "1"), record("b", "2")]
    results.keep_only(["b", "c"])
    assert Results(path).records == [record("b", "2")]


class RecordedRun:
    """A run of tests whose reports are made here."""

    def __init__(self, tmp_path: Path) -> None:
        self.records: list[Record] = []
        self.logs = tmp_path / "logs"
        self.recorder = Recorder(
            self.records.append, lambda: True, seed=1, commit="1", machine="m", logs=self.logs
        )

    def report(self, cell: str, **outcomes: str) -> None:
        for when, outcome in outcomes.items():
            report = pytest.TestReport(cell, ("", 0, ""), {}, outcome, "why", when, duration=0.5)  # type: ignore[arg-type]
            self.recorder.pytest_runtest_logreport(report)


def test_a_test_is_recorded_once_it_is_over(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path)
    run.report("t.py::passes", setup="passed", call="passed")
    assert run.records == []
    run.report("t.py::passes", teardown="passed")
    run.report("t.py::fails[a/b]", setup="passed", call="failed", teardown="passed")
    run.report("t.py::skips", setup="skipped", teardown="passed")
    assert [(each.cell, each.outcome, each.seconds) for each in run.records] == [
        ("t.py::passes", "passed", 1.5),
        ("t.py::fails[a/b]", "failed", 1.5),
        ("t.py::skips", "skipped", 1.0),
    ]
    assert [path.name for path in run.logs.iterdir()] == ["fails-a-b.log"]


def test_the_summary_names_what_did_not_pass_and_what_is_missing() -> None:
    records = [record("a", "1"), replace(record("b", "2", "failed"), seed=3)]
    text = summarise(SUITES["matrix"], records, ["a", "b", "c"])
    for line in ("| cells | 3 |", "| failed | 1 |", "| not run | 1 |", "| seeds | 1, 3 |"):
        assert line in text
    assert "| `b` | failed | 2 |" in text
