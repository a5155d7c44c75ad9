"""A walk through the web page in a real browser: web/e2e/flow.mjs, run by tests."""

import os
import shutil
import subprocess

import pytest

from support.repository import ROOT

WEB = ROOT / "web"

# Skipped where a browser is missing, but never in CI, which has to have one.
needs_browser = pytest.mark.skipif(
    "CI" not in os.environ and not (shutil.which("node") and shutil.which("chromium")),
    reason="needs Node 20.19+ and Chromium: apt-get install nodejs npm chromium",
)


def build_page() -> None:
    """Make web/dist, unless it is there and as new as its sources."""
    subprocess.run(["bash", str(ROOT / "scripts" / "web.sh"), "build"], check=True, timeout=280)


def walk_through_page(*arguments: str) -> None:
    """Fail when the walk does; without arguments it meets fixed answers, else a URL and a job."""
    result = subprocess.run(
        ["node", "e2e/flow.mjs", *arguments],
        cwd=WEB,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
