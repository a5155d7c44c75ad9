"""Who may import whom."""

import os
import subprocess
import sys
from pathlib import Path

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
