"""Results stored cell by cell, so that a long run can be interrupted and resumed.

A cell is one test case, one schedule or one search. Its record stays valid until product code
changes; tests, benchmarks and documents may change.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import REPOSITORY

PRODUCT = ("sdk", "services", "worker", "protos", ":(exclude,glob)**/*.md")
"""Git pathspecs of product code."""
PASSED = "passed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The outcome of one cell."""

    cell: str
    seed: int | None
    outcome: str
    """passed, failed or skipped."""
    seconds: float
    commit: str
    machine: str
    date: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Product:
    """The code of the product in a work tree."""

    def __init__(self, root: Path = REPOSITORY) -> None:
        self._root = root
        self.is_unchanged_since = cache(self._is_unchanged_since)

    @property
    def commit(self) -> str:
        """Return the current commit.

        Raises:
            SystemExit: product code has uncommitted changes.
        """
        if not self._is_unchanged_since("HEAD"):
            raise SystemExit("commit your changes to product code first: results name a commit")
        return self._git("rev-parse", "--short=10", "HEAD").stdout.strip()

    def _is_unchanged_since(self, commit: str) -> bool:
        """Return False if product code differs, or the commit is unknown."""
        return self._git("diff", "--quiet", commit, "--", *PRODUCT).returncode == 0

    def _git(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *arguments], cwd=self._root, capture_output=True, text=True, check=False
        )


class Results:
    """The newest record of each cell, stored in a file that is replaced atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path
        content = json.loads(path.read_text()) if path.exists() else []
        self._records = {each["cell"]: Record(**each) for each in content}

    @property
    def records(self) -> list[Record]:
        return [self._records[cell] for cell in sorted(self._records)]

    def find(self, cell: str, seed: int | None, product: Product) -> Record | None:
        """Return the record of a cell that passed with a seed on the current product code."""
        record = self._records.get(cell)
        if record is None or (record.outcome, record.seed) != (PASSED, seed):
            return None
        return record if product.is_unchanged_since(record.commit) else None

    def add(self, record: Record) -> None:
        self._records[record.cell] = record
        self._write()

    def keep_only(self, cells: Iterable[str]) -> None:
        """Drop records of other cells."""
        self._records = {cell: self._records[cell] for cell in {*cells} & self._records.keys()}
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(asdict(record)) for record in self.records)
        new = self._path.with_suffix(f".{os.getpid()}.new")
        new.write_text(f"[\n{lines}\n]\n")
        new.replace(self._path)
