"""A PostgreSQL server of a test's own, which benchmarks use as well.

Tests that use it are marked `needs_postgres`.
"""

import os

import pytest

from benchmarks.common.postgres import PASSWORD, postgres_server, programs

__all__ = ["PASSWORD", "needs_postgres", "postgres_server", "programs"]

# Skipped where it is missing, but never in CI, which has to have it.
needs_postgres = pytest.mark.skipif(
    "CI" not in os.environ and programs() is None,
    reason="needs PostgreSQL: apt-get install postgresql",
)
