"""Reports of the engine's threads to the agent."""

from typing import Protocol

from google.protobuf.message import Message

from planaria.api.worker.v1.engine_link_pb2 import EngineEvent
from planaria.api.worker.v1.report_pb2 import (
    CheckpointReport,
    CheckpointTaken,
    DirectiveResult,
)
from planaria_common.clock import Clock
from planaria_common.logging import get_logger
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.groups.link_failure import LinkFailure
from planaria_worker.engine.layers.checkpoint import CheckpointError
from planaria_worker.engine.layers.checkpoint.errors import checkpoint_failed
from planaria_worker.engine.layers.checkpoint.manifest import LayerEntry
from planaria_worker.engine.process import convert
from planaria_worker.engine.training.faults import Fault
from planaria_worker.engine.training.step_reports import StepDone
from planaria_worker.engine_config import EngineConfig

_log = get_logger("engine")


class ToAgent(Protocol):
    """Sends events to the agent, and keeps them while there is none; from any thread."""

    def post(self, event: EngineEvent) -> None:
        """Sends an event to one agent."""

    def report(self, event: EngineEvent) -> None:
        """Sends an event to every agent that comes, until the coordinator has stored it."""


class Reports:
    """Turns what the engine's threads meet into events for the agent."""

    def __init__(self, config: EngineConfig, to_agent: ToAgent, fence: Fence, clock: Clock) -> None:
        self._config = config
        self._to_agent = to_agent
        self._fence = fence
        self._clock = clock

    def step_done(self, done: StepDone) -> None:
        record = done.record
        evaluation = record.evaluation_loss
        evaluated = {} if evaluation is None else {"evaluation_loss": round(evaluation, 4)}
        skipped = {"skipped_layer": record.skipped_layer} if record.is_skipped else {}
        _log.info("step", step=record.step, loss=round(record.loss, 4), **evaluated, **skipped)
        report = convert.step_report(self._config.job_id, done)
        self._to_agent.report(EngineEvent(step_report=report))

    def fault(self, generation: int, fault: Fault) -> None:
        event = convert.engine_fault(
            self._config.job_id, self._config.engine_id, generation, fault, self._clock.now()
        )
        self._to_agent.post(EngineEvent(fault=event))

    def hang(self, fault: Fault) -> None:
        _log.error("hangs", cause=fault.message)
        self.fault(self._fence.newest, fault)

    def link_failed(self, failure: LinkFailure) -> None:
        event = convert.link_failed(self._config.job_id, self._config.engine_id, failure)
        self._to_agent.post(EngineEvent(link_failed=event))

    def taken(self, version: int, layers: tuple[int, ...]) -> None:
        self._checkpoint(version, taken=CheckpointTaken(layers=layers))

    def written(self, version: int, entry: LayerEntry) -> None:
        self._checkpoint(version, written=convert.layer_written(entry))

    def failed(self, version: int, error: CheckpointError) -> None:
        cause = checkpoint_failed(error)
        _log.warning("checkpoint_failed", version=version, cause=cause.message)
        failure = convert.failure(cause.reason, cause.message, cause.metadata)
        self._checkpoint(version, failure=failure)

    def _checkpoint(self, version: int, **report: Message) -> None:
        message = CheckpointReport(
            job_id=self._config.job_id,
            engine_id=self._config.engine_id,
            version=version,
            **report,  # type: ignore[arg-type]  # one field of the oneof, by its name
        )
        self._to_agent.report(EngineEvent(checkpoint_report=message))

    def answer(self, result: DirectiveResult) -> None:
        self._to_agent.post(EngineEvent(result=result))
