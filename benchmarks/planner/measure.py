"""Warm CPU seconds of this process, cold ones of a new one, and what they were measured on."""

import datetime
import importlib.metadata
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from planaria_planner.templates.templates import generate_templates

LIBRARIES = ("numpy", "scipy", "numba", "llvmlite")


def cpu_seconds(work: Callable[[], object], repeats: int = 5, *, known: bool = False) -> float:
    """Return the median CPU seconds of `work`, nothing remembered of former runs unless `known`.

    Of the process and not of the clock: other work on the machine makes it wait, and only makes
    it slower where it shares a core's caches.
    """
    taken = []
    for _ in range(repeats):
        if not known:
            generate_templates.cache_clear()
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def child_cpu_seconds(program: str, **environment: str) -> float:
    """Return the CPU seconds of a new Python process that runs `program`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, **environment})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cold_rows() -> list[dict[str, str]]:
    """Return what a new process costs before its first answer."""
    plan = "from planaria_planner.warm_up import warm_up; warm_up()"
    imports = statistics.median(
        child_cpu_seconds("import planaria_planner.warm_up") for _ in range(3)
    )
    cached = statistics.median(child_cpu_seconds(plan) for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        compiled = child_cpu_seconds(plan, NUMBA_CACHE_DIR=folder)
    return [
        {"a new process": "imports the planner", "CPU seconds": f"{imports:.2f}"},
        {"a new process": "and plans once, loops loaded", "CPU seconds": f"{cached:.2f}"},
        {"a new process": "and plans once, loops compiled", "CPU seconds": f"{compiled:.2f}"},
    ]


def surroundings() -> dict[str, str]:
    """Return the machine, the date and the versions."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - not a file of ours
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": f"{names[0] if names else model}, {os.cpu_count()} cores",
        "load": f"{os.getloadavg()[0]:.1f} processes wanting to run",
        "versions": f"Python {platform.python_version()}, {versions}",
    }
