"""Resident memory of this process, as the kernel counts it."""

from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    """Return the resident memory now."""
    return _field("VmRSS")


def peak_bytes() -> int:
    """Return the most resident memory that this process ever had."""
    return _field("VmHWM")


def _field(wanted: str) -> int:
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == wanted:
            return int(value.split()[0]) * 1024
    raise OSError(f"{_STATUS} has no {wanted}")
