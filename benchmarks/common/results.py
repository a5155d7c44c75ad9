"""Results: what was measured where, stored next to the measurement as JSON."""

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks import REPOSITORY

_LIBRARIES = ("torch", "numpy", "numba", "grpcio")

Rows = Sequence[Sequence[object]]


def surroundings() -> dict[str, str]:
    """Return what a figure depends on besides the code."""
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    memory = psutil.virtual_memory().total / 2**30
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "system": f"Linux {platform.release()}, Python {platform.python_version()}",
        "libraries": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES),
        "load at the start": f"{os.getloadavg()[0]:.1f}",
        "revision": revision.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def machine() -> str:
    """Return the machine in a few words."""
    where = surroundings()
    return f"{where['processor']}, {where['cores']} cores, {where['memory']}"


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def summary(values: Iterable[float]) -> dict[str, float]:
    """Return median, 95th percentile and largest of at least one value."""
    ordered = sorted(values)
    p95 = ordered[0] if len(ordered) == 1 else statistics.quantiles(ordered, n=20)[-1]
    return {
        "median": statistics.median(ordered),
        "p95": min(p95, ordered[-1]),
        "max": ordered[-1],
        "count": len(ordered),
    }


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def table(header: Sequence[str], rows: Rows) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)
