"""Puts an engine together from its parts; the only place that knows all of them."""

import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import torch

from planaria.api.worker.v1.engine_link_pb2 import EngineEvent
from planaria.api.worker.v1.report_pb2 import (
    EngineSnapshot,
    EngineState,
    MeasuredLayer,
    Prepared,
)
from planaria_common.clock import Clock
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_worker.engine import convert
from planaria_worker.engine.checkpointing import Checkpointer
from planaria_worker.engine.communication import StoreServer
from planaria_worker.engine.copying import CommitFeed, CopyServer
from planaria_worker.engine.directives import Directives
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.job import Job, open_job
from planaria_worker.engine.layer_work import LayerWork
from planaria_worker.engine.lone_layer import LayerCost
from planaria_worker.engine.numerics.pins import fingerprint, pin_numerics
from planaria_worker.engine.peer_watch import PeerWatch
from planaria_worker.engine.reports import Reports
from planaria_worker.engine.state import LayerStore
from planaria_worker.engine.stopwatch import Stopwatch
from planaria_worker.engine.storage import checkpoint_plan, job_base
from planaria_worker.engine.trainer import Trainer
from planaria_worker.engine.vitals import Vitals
from planaria_worker.engine.warmup import peak_flops_per_second, warm_up
from planaria_worker.engine.watchdog import Watchdog
from planaria_worker.engine_config import EngineConfig
from planaria_worker.models.imported import ImportedModelError

_log = get_logger("engine")

OPERATION_TIMEOUT_SECONDS = 300.0
"""The last resort of every wait between engines; whoever learns of a loss ends it long before."""


class Engine:
    """An engine that is warm and has its ports open."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        fence: Fence,
        vitals: Vitals,
        stopwatch: Stopwatch,
        post: Callable[[EngineEvent], None],
        stop: Callable[[], None],
        clock: Clock,
        failpoints: Failpoints,
    ) -> None:
        """Imports are done: reads the data, measures, opens ports.

        Args:
            config: what the agent said.
            fence: also the control thread's.
            vitals: also the control thread's.
            stopwatch: counts the actions of the training thread.
            post: sends an event to the agent.
            stop: ends the process in order; called on the control thread.
            clock: the time of reports.
            failpoints: failures that a test wants.

        Raises:
            DataError: the data cannot be used.
            PlanariaError: the model by import path (INVALID_JOB), what the job begins from
                (INIT_UNUSABLE) or its checkpoint.path (CHECKPOINT_FAILED) cannot be used; names
                this node.
        """
        pin_numerics()
        self._config = config
        self._vitals = vitals
        self._stopwatch = stopwatch
        self._stop = stop
        self._reports = Reports(config, post, fence, clock)
        self._job = _open_job(config, _take_device(config))
        self._base = job_base(config, self._job)
        self._measured = warm_up(self._job)
        self._peak_flops_per_second = peak_flops_per_second(self._job)
        store, feed = LayerStore(), CommitFeed()
        checkpointer = Checkpointer(
            checkpoint_plan(config, self._job, self._base),
            engine_id=config.engine_id,
            store=store,
            listener=self._reports,
            failpoints=failpoints,
        )
        self._copy_server = CopyServer(
            config.advertise_address,
            engine_id=config.engine_id,
            job_secret=config.job_secret,
            source=store,
            feed=feed,
            failpoints=failpoints,
        )
        self._store_server = StoreServer(config.advertise_address)
        self._peer_watch = PeerWatch(
            job_secret=config.job_secret, on_lost=self._peer_lost, clock=clock
        )
        self._trainer = Trainer(
            engine_id=config.engine_id,
            host=config.advertise_address,
            transport=config.transport,
            job_secret=config.job_secret,
            job=self._job,
            store=store,
            feed=feed,
            fence=fence,
            vitals=vitals,
            peer_watch=self._peer_watch,
            listener=self._reports,
            checkpointer=checkpointer,
            clock=clock,
            stopwatch=stopwatch,
            failpoints=failpoints,
            operation_timeout_seconds=OPERATION_TIMEOUT_SECONDS,
        )
        self.directives = Directives(
            job_secret=config.job_secret,
            fence=fence,
            trainer=self._trainer,
            layer_work=LayerWork(job=self._job, base=self._base, store=store, fence=fence),
            checkpointer=checkpointer,
            store=store,
            vitals=vitals,
            answer=self._reports.answer,
            stop=self._stop_in_order,
            clock=clock,
            failpoints=failpoints,
        )
        vitals.data_address = self._copy_server.address
        vitals.store_address = self._store_server.address
        vitals.enter(EngineState.ENGINE_STATE_PARKED)

    def prepared(self, snapshot: EngineSnapshot) -> Prepared:
        """The answer to the directive that started this engine."""
        return Prepared(
            engine=snapshot,
            data_digest=self._config.data_digest,
            num_tokens=len(self._job.dataset.file.tokens),
            fingerprint=fingerprint(self._job.device.type, self._config.transport),
            measured_layers=[_measured(*item) for item in self._measured.items()],
            model_digest=self._job.model_digest,
            peak_flops_per_second=self._peak_flops_per_second,
            base=convert.base(self._base.facts),
        )

    def run(self) -> None:
        """Trains when it is told to, for ever; call it on the main thread."""
        if self._config.progress_deadline_seconds:
            Watchdog(
                deadline_seconds=self._config.progress_deadline_seconds,
                stopwatch=self._stopwatch,
                vitals=self._vitals,
                report=self._reports.hang,
                thread_id=threading.get_ident(),
            ).start()
        self._trainer.run()

    def _peer_lost(self, engine_id: str, detect_time: datetime) -> None:
        self._trainer.peer_lost(engine_id)
        self._reports.peer_lost(engine_id, detect_time)

    def _stop_in_order(self, _reason: str) -> None:
        self._copy_server.close()
        self._stop()


def _measured(layer: int, cost: LayerCost) -> MeasuredLayer:
    return MeasuredLayer(
        layer=layer,
        forward_seconds=cost.seconds.forward_seconds,
        backward_seconds=cost.seconds.backward_seconds,
        parameter_bytes=cost.parameter_bytes,
        state_bytes=cost.state_bytes,
        activation_bytes=cost.activation_bytes,
        output_bytes=cost.output_bytes,
        forward_flops=cost.forward_flops,
    )


def _take_device(config: EngineConfig) -> torch.device:
    """The engine's accelerator; what computes from now on computes there."""
    if config.accelerator_kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", config.accelerator)
    torch.cuda.set_device(device)
    return device


def _open_job(config: EngineConfig, device: torch.device) -> Job:
    try:
        return open_job(
            config.job_id,
            config.job_spec,
            Path(config.data_path),
            device,
            Path(config.evaluation_data_path),
        )
    except ImportedModelError as error:
        node_id = config.engine_id.split("/")[1]
        raise PlanariaError(
            ErrorReason.INVALID_JOB,
            f"node {node_id}: {error}",
            {"field": str(error).partition(":")[0], "node_id": node_id},
        ) from error
