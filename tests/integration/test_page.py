"""The built page in a real browser, against fixed answers."""

import os
import shutil
import subprocess

import pytest

from support.repository import ROOT

pytestmark = pytest.mark.integration

WEB = ROOT / "web"


def _requires(command: str) -> pytest.MarkDecorator:
    """Skip where a command is missing, but never in CI: it has to have everything."""
    missing = shutil.which(command) is None and "CI" not in os.environ
    return pytest.mark.skipif(missing, reason=f"needs {command}")


@_requires("node")
@_requires("chromium")
def test_a_walk_through_the_page() -> None:
    """By keyboard to a job and back; both views accessible; old data is called old."""
    subprocess.run(["bash", str(ROOT / "scripts" / "web.sh"), "build"], check=True, timeout=280)
    result = subprocess.run(
        ["node", "e2e/flow.mjs"],
        cwd=WEB,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
