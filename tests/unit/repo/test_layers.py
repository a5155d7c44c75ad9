"""Imports that no contract of [tool.importlinter] covers; `make lint` checks the others."""

import re

import pytest

from support.repository import ROOT


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_nothing_outside_the_tests_imports_them(folder: str) -> None:
    imports = re.compile(r"^\s*(?:from|import) (?:tests|support|unit|integration|e2e)\b", re.M)
    found = [
        path.name for path in (ROOT / folder).rglob("*.py") if imports.search(path.read_text())
    ]
    assert found == []
