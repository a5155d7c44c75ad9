"""What an Activate asks for, as groups."""

import json
import threading
from pathlib import Path

import torch

from planaria_common.clock import SystemClock
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.groups import Communicators, GroupKind, GroupSpec, StoreServer
from planaria_worker.engine.job import open_job
from planaria_worker.engine.layers.copy import CommitFeed
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.recovery.plan_request import Builder, PlanRequest
from planaria_worker.engine.step.training_context import EngineResources
from planaria_worker.engine.telemetry import Stopwatch
from support.engines.training_jobs import training_job

HOST = "127.0.0.1"
OPERATION_SECONDS = 0.1
PASS_SECONDS = 0.5


def test_a_follower_waits_as_long_as_the_passes_of_others_take(tmp_path: Path) -> None:
    """Guard: it has nothing to compute, and a step may be longer than any other wait between
    engines may last."""
    files = training_job(tmp_path, num_blocks=1).files
    job = open_job("job", json.dumps(files.spec), files.data_path, torch.device("cpu"))
    resources = EngineResources(
        job=job,
        store=LayerStore(),
        feed=CommitFeed(),
        fence=Fence(1),
        stopwatch=Stopwatch(),
        failpoints=Failpoints(),
    )
    store = StoreServer(HOST)
    request = PlanRequest(
        generation=1,
        pipelines=(),
        committed_steps=0,
        store_address=store.address,
        rebuild_timeout_seconds=30,
    )

    def begin(engine_id: str) -> Communicators:
        builder = Builder(
            engine_id=engine_id,
            host=HOST,
            transport="gloo",
            resources=resources,
            clock=SystemClock(),
            operation_timeout_seconds=OPERATION_SECONDS,
        )
        communicators = builder.communicators(request)
        members = ("follower", "computes")
        specs = [GroupSpec(name="sums", kind=GroupKind.GRADIENT_SUM, members=members)]
        builder.start(communicators, specs, request)
        return communicators

    begun = [begin("follower"), begin("computes")]
    follower, computes = [communicators.wait().data_parallel["sums"] for communicators in begun]
    late = threading.Timer(PASS_SECONDS, lambda: computes.all_reduce(torch.ones(1)))
    late.start()
    total = torch.zeros(1)
    follower.all_reduce(total)
    late.join()
    assert total.item() == 1
    for communicators in begun:
        communicators.shut()
    store.close()
