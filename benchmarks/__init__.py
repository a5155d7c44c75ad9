"""Measurements. Those that need a cluster hurt the one that the tests hurt: tests/support."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.append(str(REPOSITORY / "tests"))
