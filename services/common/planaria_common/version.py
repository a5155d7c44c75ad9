"""What this installation is, and what it speaks."""

from importlib.metadata import version

PROTOCOL_VERSION = 2
"""Grows when agents and coordinators of different versions no longer understand each other."""


def package_version() -> str:
    """Return the version of the installed `planaria` distribution."""
    return version("planaria")
