"""Python imports this at its start, if its folder is in PYTHONPATH: the clock is what a file says.

The file PLANARIA_TEST_CLOCK holds seconds by which the time of day is ahead. When processes were
started follows it, as psutil has it: the kernel only knows how long after the boot it was.
"""

import os
import time
from datetime import datetime, timedelta
from pathlib import Path

import psutil

from planaria_common.clock import SystemClock

ENVIRONMENT_VARIABLE = "PLANARIA_TEST_CLOCK"

_real = SystemClock.now, time.time, psutil.Process.create_time


def _ahead_seconds() -> float:
    return float(Path(os.environ[ENVIRONMENT_VARIABLE]).read_text())


def _now(self: SystemClock) -> datetime:
    return _real[0](self) + timedelta(seconds=_ahead_seconds())


def _create_time(self: psutil.Process) -> float:
    return _real[2](self) + _ahead_seconds()


if ENVIRONMENT_VARIABLE in os.environ:
    SystemClock.now = _now  # type: ignore[method-assign]
    time.time = lambda: _real[1]() + _ahead_seconds()
    psutil.Process.create_time = _create_time  # type: ignore[method-assign]
