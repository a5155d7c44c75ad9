"""Imports between the parts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import ROOT


def _lint_imports() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_every_import_contract_is_kept() -> None:
    """The parts stay apart as the architecture says: see [tool.importlinter]."""
    result = _lint_imports()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_nothing_outside_the_tests_imports_them(folder: str) -> None:
    imports = re.compile(r"^\s*(?:from|import) (?:tests|support|unit|integration|e2e)\b", re.M)
    found = [
        path.name for path in (ROOT / folder).rglob("*.py") if imports.search(path.read_text())
    ]
    assert found == []
