"""Groups that cannot be made leave nothing behind; those that stand are tested on processes."""

import gc
import threading
from pathlib import Path

import pytest
import torch

from planaria_common.errors import PlanariaError, UnavailableError
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.groups import Communicators, GroupKind, GroupSpec, StoreServer

HOST = "127.0.0.1"
SPECS = [
    GroupSpec(name="link", kind=GroupKind.ACTIVATIONS, members=("here", "elsewhere")),
    GroupSpec(name="sums", kind=GroupKind.GRADIENT_SUM, members=("here", "elsewhere")),
]


def attempt(*, store_dies: bool) -> tuple[Communicators, PlanariaError]:
    """To make groups to whose other member nobody comes."""
    store = StoreServer(HOST)
    communicators = Communicators(
        engine_id="here",
        host=HOST,
        device=torch.device("cpu"),
        transport="gloo",
        operation_timeout_seconds=30.0,
        failpoints=Failpoints(),
    )
    communicators.start(
        SPECS,
        store_address=store.address,
        prefix="1/",
        timeout_seconds=30.0 if store_dies else 0.2,
    )
    if store_dies:
        while len(communicators._connectors) < len(SPECS):
            threading.Event().wait(0.01)
        store.close()
    with pytest.raises(UnavailableError) as failure:
        communicators.wait()
    store.close()
    return communicators, failure.value


def num_open(at_most: int = 1 << 20) -> int:
    """Descriptors and threads, once they are no more than so many, or do not become it."""
    pause = threading.Event()
    for _ in range(100):
        found = sum(len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in ("fd", "task"))
        if found <= at_most:
            break
        pause.wait(0.05)
    return found


@pytest.mark.parametrize("store_dies", [False, True], ids=["nobody comes", "the store dies"])
def test_a_failed_attempt_leaves_nothing_open(*, store_dies: bool) -> None:
    """Though its failure is still known, and without a garbage collection."""
    attempts = [attempt(store_dies=store_dies)]
    attempts.clear()
    gc.collect()
    gc.disable()
    try:
        before = num_open()
        attempts += [attempt(store_dies=store_dies) for _ in range(2)]
        assert num_open(before) <= before
    finally:
        gc.enable()
