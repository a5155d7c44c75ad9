"""The composition root: builds an engine from its parts."""

import threading
from collections.abc import Callable

from planaria.api.worker.v1.report_pb2 import EngineSnapshot, EngineState, Prepared
from planaria_common.clock import Clock
from planaria_common.errors import ErrorReason
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.groups import StoreServer
from planaria_worker.engine.groups.link_failure import LinkFailure
from planaria_worker.engine.layers.checkpoint import Checkpointer
from planaria_worker.engine.layers.copy import CommitFeed, CopyServer
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.layers.layer_tasks import LayerTasks
from planaria_worker.engine.layers.storage import checkpoint_plan
from planaria_worker.engine.process.directives import Directives
from planaria_worker.engine.process.preparation import Preparation, prepare
from planaria_worker.engine.process.reports import Reports, ToAgent
from planaria_worker.engine.process.watchdog import Watchdog
from planaria_worker.engine.recovery.failure_detector import FailureDetector
from planaria_worker.engine.recovery.plan_request import Builder
from planaria_worker.engine.step.training_context import EngineResources
from planaria_worker.engine.telemetry import Stopwatch, Vitals
from planaria_worker.engine.training.faults import Fault
from planaria_worker.engine.training.trainer import Trainer
from planaria_worker.engine_config import EngineConfig

OPERATION_TIMEOUT_SECONDS = 300.0
"""The last resort of every wait between engines; a detected loss ends it long before."""


class Engine:
    """An engine that is warm and has its ports open."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        fence: Fence,
        vitals: Vitals,
        stopwatch: Stopwatch,
        to_agent: ToAgent,
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
            to_agent: sends events to the agent.
            stop: ends the process in order; called on the control thread.
            clock: the time of reports.
            failpoints: failures that a test wants.

        Raises:
            DataError: the data cannot be used.
            PlanariaError: the model by import path (INVALID_JOB), what the job begins from
                (INIT_UNUSABLE) or its checkpoint.path (CHECKPOINT_FAILED) cannot be used; names
                this node.
        """
        self._config = config
        self._vitals = vitals
        self._clock = clock
        self._stop = stop
        self._reports = Reports(config, to_agent, fence, clock)
        failpoints.hit("prepare")
        self._preparation = prepare(config)
        self._resources = EngineResources(
            job=self._preparation.job,
            store=LayerStore(),
            feed=CommitFeed(),
            fence=fence,
            stopwatch=stopwatch,
            failpoints=failpoints,
        )
        checkpointer = _checkpointer(self._preparation, self._resources, self._reports)
        self._copy_server = _copy_server(config, self._resources)
        self._store_server = StoreServer(config.advertise_address)
        self._trainer = self._make_trainer(checkpointer)
        self.directives = self._make_directives(checkpointer)
        vitals.data_address = self._copy_server.address
        vitals.store_address = self._store_server.address
        vitals.enter(EngineState.ENGINE_STATE_PARKED)

    def prepared(self, snapshot: EngineSnapshot) -> Prepared:
        """The answer to the directive that started this engine."""
        return self._preparation.answer(snapshot)

    def run(self) -> None:
        """Train when a plan is activated, for ever; call it on the main thread."""
        if self._config.progress_deadline_seconds:
            Watchdog(
                deadline_seconds=self._config.progress_deadline_seconds,
                stopwatch=self._resources.stopwatch,
                vitals=self._vitals,
                report=self._reports.hang,
                thread_id=threading.get_ident(),
                model_seconds=self._preparation.model_seconds,
            ).start()
        self._trainer.run()

    def fence_itself(self) -> bool:
        """Do nothing with the layers until the coordinator's next fence; return whether it has any.

        The agent that comes hears of it, so that there will be a fence.
        """
        has_layers = self.directives.fence_itself()
        message = "it had no agent for longer than the lease, and has fenced itself"
        fault = Fault(reason=ErrorReason.UNAVAILABLE, message=message, is_fatal=False)
        self._reports.fault(self._resources.fence.newest, fault)
        return has_layers

    def _make_trainer(self, checkpointer: Checkpointer) -> Trainer:
        config = self._config
        return Trainer(
            builder=Builder(
                engine_id=config.engine_id,
                host=config.advertise_address,
                transport=config.transport,
                resources=self._resources,
                clock=self._clock,
                operation_timeout_seconds=OPERATION_TIMEOUT_SECONDS,
            ),
            job_secret=config.job_secret,
            vitals=self._vitals,
            failure_detector=FailureDetector(
                job_secret=config.job_secret, on_failure=self._link_failed, clock=self._clock
            ),
            listener=self._reports,
            checkpointer=checkpointer,
        )

    def _make_directives(self, checkpointer: Checkpointer) -> Directives:
        resources = self._resources
        return Directives(
            job_secret=self._config.job_secret,
            resources=resources,
            trainer=self._trainer,
            layer_tasks=LayerTasks(
                job=resources.job,
                initial_state=self._preparation.initial_state,
                store=resources.store,
                fence=resources.fence,
            ),
            checkpointer=checkpointer,
            copy_server=self._copy_server,
            vitals=self._vitals,
            answer=self._reports.answer,
            stop=self._stop_in_order,
            clock=self._clock,
        )

    def _link_failed(self, failure: LinkFailure) -> None:
        self._reports.link_failed(failure)  # first, since the whole job waits for it
        if failure.is_final:
            self._trainer.link_failed(failure)

    def _stop_in_order(self, _reason: str) -> None:
        self._copy_server.close()
        self._stop()


def _checkpointer(
    preparation: Preparation, resources: EngineResources, reports: Reports
) -> Checkpointer:
    config = preparation.config
    return Checkpointer(
        checkpoint_plan(config, preparation.job, preparation.initial_state),
        engine_id=config.engine_id,
        store=resources.store,
        listener=reports,
        failpoints=resources.failpoints,
    )


def _copy_server(config: EngineConfig, resources: EngineResources) -> CopyServer:
    return CopyServer(
        config.advertise_address,
        engine_id=config.engine_id,
        job_secret=config.job_secret,
        source=resources.store,
        feed=resources.feed,
        failpoints=resources.failpoints,
    )
