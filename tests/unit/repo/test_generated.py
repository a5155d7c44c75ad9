"""What is generated and committed is what its sources say."""

import subprocess
import sys

import pytest

from support.repository import ROOT


@pytest.mark.parametrize("script", ["generate_protos.py", "generate_reference.py"])
def test_committed_output_is_what_the_generator_writes(script: str) -> None:
    """Nobody edited the output by hand, or forgot to generate it again."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
