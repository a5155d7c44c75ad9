"""What this installation is, and what it speaks."""

from importlib.metadata import version

PROTOCOL_VERSION = 3
"""Grows when coordinators, agents and engines no longer understand those of other versions."""


def package_version() -> str:
    """Return the version of the installed `planaria` distribution."""
    return version("planaria")
