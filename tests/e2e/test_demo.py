"""`make demo` with a short job: two nodes are killed, and the model is the undisturbed one."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import ROOT

pytestmark = pytest.mark.e2e


def test_the_demo_ends_with_the_model_of_an_undisturbed_run(tmp_path: Path) -> None:
    """[6]"""
    demo = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py", "--steps", "60", "--seed", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "5 nodes, 2 killed" in demo.stdout
    assert "Equal." in demo.stdout
    assert list(tmp_path.glob("runs/demo-*/loss.png"))
