import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Services set up logging for their whole process: undo it, for the tests that follow."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    before = structlog.get_config()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.configure(**before)
