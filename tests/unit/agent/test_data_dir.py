"""An agent refuses a data directory that it cannot use, in one line that can be printed."""

import os
from pathlib import Path

import pytest

from planaria_common.errors import PlanariaError
from planaria_worker.__main__ import serve
from planaria_worker.agent.settings import WorkerSettings


async def test_a_data_directory_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Engines read their paths from JSON, which is UTF-8."""
    data_dir = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with pytest.raises(PlanariaError, match="is not UTF-8") as caught:
        await serve(WorkerSettings(coordinator=("unused:1",), data_dir=data_dir))
    assert caught.value.message.isprintable()
    assert caught.value.metadata["field"] == "--data-dir"
