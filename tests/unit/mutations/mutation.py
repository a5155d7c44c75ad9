"""A guard that is taken out of a copy of the source, and the tests that must miss it."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.repository import ROOT

COPIED = ("sdk", "services", "worker", "tests", "benchmarks", "examples", "docs", "pyproject.toml")
SOURCES = ("", "sdk", "services/common", "services/coordinator", "services/planner", "worker")
SECONDS = 240
"""That a test without its guard may hang: it has failed then as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """Lines of the source without which something must fail."""

    guard: str
    """As in docs/verification/guards.md."""
    path: str
    """Of the module, from the root of the repository."""
    lines: str
    """What stands there exactly once."""
    without: str
    """What takes its place."""
    seen_by: tuple[str, ...]
    """Tests, as pytest names them: each must fail."""

    @property
    def is_in_place(self) -> bool:
        """Whether the lines stand where they are to be taken out, once."""
        return (ROOT / self.path).read_text(encoding="utf-8").count(self.lines) == 1


class Copy:
    """The source once more, to be changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        for name in COPIED:
            path = ROOT / name
            if path.is_dir():
                shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, folder / name)

    def run(self, test: str, mutation: Mutation) -> subprocess.CompletedProcess[str]:
        """Run a test on the source without the guard."""
        path = self._folder / mutation.path
        whole = path.read_text(encoding="utf-8")
        path.write_text(whole.replace(mutation.lines, mutation.without), encoding="utf-8")
        try:
            return self._pytest(test)
        finally:
            path.write_text(whole, encoding="utf-8")

    def _pytest(self, test: str) -> subprocess.CompletedProcess[str]:
        options = ["-m", "", "-x", "-q", "--tb=line", "-p", "no:cacheprovider"]
        options += ["--hypothesis-profile=first-failure", f"--timeout={SECONDS}"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self._folder / name) for name in SOURCES),
            "PYTHONDONTWRITEBYTECODE": "1",  # two mutations of one length within a second
        }
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, test],
            cwd=self._folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def has_failed(ended: subprocess.CompletedProcess[str]) -> bool:
    """Say whether a test ran and failed: not one that could not be found, or imported."""
    return ended.returncode == 1 and bool(re.search(r"\b\d+ failed\b", ended.stdout))
