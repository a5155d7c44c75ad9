"""Which tests need a PostgreSQL server of their own."""

import os

import pytest

from benchmarks.common.postgres import programs

# Skipped where it is missing, but never in CI, which has to have it.
needs_postgres = pytest.mark.skipif(
    "CI" not in os.environ and programs() is None,
    reason="needs PostgreSQL: apt-get install postgresql",
)
