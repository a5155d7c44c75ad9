"""The page shows a real cluster."""

from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from support.browser import WEB, build_page, needs_browser, walk_through_page

pytestmark = pytest.mark.e2e


@needs_browser
def test_the_page_shows_a_running_job(tmp_path: Path, text: Path) -> None:
    """The coordinator serves the page, and the page understands every answer it gets."""
    build_page()
    with Cluster(tmp_path / "cluster", web_dir=WEB / "dist") as cluster:
        cluster.start(num_nodes=2)
        job = cluster.client.submit(small_job(text, training__steps=100_000))
        cluster.wait_for_step(job.id, 2)
        walk_through_page(f"{cluster.client.address}/", job.id)
        cluster.client.cancel_job(job.id)
        cluster.wait_for_end(job.id)
