"""Where things are in the repository, for tests about the repository itself."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {
    "planaria": ROOT / "sdk" / "planaria",
    "planaria_common": ROOT / "services" / "common" / "planaria_common",
    "planaria_planner": ROOT / "services" / "planner" / "planaria_planner",
    "planaria_coordinator": ROOT / "services" / "coordinator" / "planaria_coordinator",
    "planaria_worker": ROOT / "worker" / "planaria_worker",
}
"""The packages of the distribution, by import name."""
