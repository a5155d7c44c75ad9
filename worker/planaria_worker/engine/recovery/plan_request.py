"""What a plan asks of an engine, checked and prepared: the view of the plan and its groups."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from planaria_common.clock import Clock
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.fence import FencedError
from planaria_worker.engine.groups import Communicators, GroupBroken, GroupSpec
from planaria_worker.engine.plan.plan import FollowerAssignment, PipelineAssignment, PlanError
from planaria_worker.engine.plan.plan_view import PlanView, view_plan
from planaria_worker.engine.recovery.retained_work import RetainedWork
from planaria_worker.engine.step.training_context import EngineResources
from planaria_worker.engine_config import Transport
from planaria_worker.models.stage import hosted_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A plan to activate or to stage."""

    generation: int
    pipelines: tuple[PipelineAssignment, ...]
    followers: tuple[FollowerAssignment, ...] = ()
    committed_steps: int = 0
    """0 when the plan is staged: it is activated at a commit, whichever that is."""
    store_address: str
    rebuild_timeout_seconds: float
    kept_groups: frozenset[str] = frozenset()
    """Ids of groups that all their members have retained."""
    layers: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Layers to follow until the switch, with data addresses of engines that train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activated:
    """The plan is activated and the first step about to begin."""

    rebuild_start_time: datetime
    resume_time: datetime
    committed_steps: int


Answer = Callable[[Activated | Exception], None]
"""Answers an Activate; from any thread, and only the first answer counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Makes what a plan needs."""

    engine_id: str
    host: str
    transport: Transport
    resources: EngineResources
    clock: Clock
    operation_timeout_seconds: float

    def view(self, request: PlanRequest) -> PlanView:
        """Read the plan as this engine sees it.

        Raises:
            PlanariaError: it cannot be run, or this engine has no assignment in it.
        """
        job = self.resources.job
        try:
            return view_plan(
                request.pipelines,
                self.engine_id,
                num_layers=job.num_layers,
                num_microbatches=job.num_microbatches,
                hosted_layers=lambda first, count: hosted_layers(job.model, first, count),
                followers=request.followers,
                separate_directions=self.transport == "nccl",
            )
        except PlanError as error:
            raise PlanariaError(ErrorReason.INVALID_ARGUMENT, str(error)) from None

    def require_layers(self, view: PlanView, version: int) -> None:
        """Make sure that the engine holds the layers of a plan.

        Raises:
            PlanariaError: some are not, or of another version.
        """
        missing = [x for x in view.hosted_layers if self.resources.store.version(x) != version]
        if missing:
            names = ", ".join(map(str, missing))
            raise PlanariaError(
                ErrorReason.WRONG_STATE,
                f"layers {names} are not held in version {version}; copy them first",
                {"layers": names, "version": str(version)},
            )

    def communicators(self, request: PlanRequest) -> Communicators:
        """Return an empty set of groups, to be filled by `start`.

        A follower waits for the passes of others, so an operation may take as long as the rebuild
        timeout, if that is longer.
        """
        return Communicators(
            engine_id=self.engine_id,
            host=self.host,
            device=self.resources.job.device,
            transport=self.transport,
            operation_timeout_seconds=max(
                self.operation_timeout_seconds, request.rebuild_timeout_seconds
            ),
            failpoints=self.resources.failpoints,
        )

    def start(
        self,
        communicators: Communicators,
        specs: Sequence[GroupSpec],
        request: PlanRequest,
        answer: Answer | None = None,
    ) -> None:
        """Begin to build groups; call `answer` when they are built, or cannot be."""
        start_time = self.clock.now()

        def when_over(failure: Exception | None) -> None:
            if answer is None:
                return
            if failure is None:
                answer(self.activated(start_time, request.committed_steps))
            else:
                answer(self.explain(failure, request.generation))

        communicators.start(
            specs,
            store_address=request.store_address,
            prefix=f"{self.resources.job.job_id}/{request.generation}/",
            timeout_seconds=request.rebuild_timeout_seconds,
            when_over=when_over,
        )

    def activated(self, start_time: datetime, committed_steps: int) -> Activated:
        """Return the answer to an Activate whose groups are built, or to a Switch."""
        self.resources.stopwatch.trace.event("activated")
        return Activated(
            rebuild_start_time=start_time,
            resume_time=self.clock.now(),
            committed_steps=committed_steps,
        )

    def explain(self, failure: Exception, generation: int) -> Exception:
        """Return why groups were not built, in words for the coordinator."""
        if not isinstance(failure, GroupBroken):
            return failure
        if self.resources.fence.is_fenced(generation):
            return FencedError(generation, self.resources.fence.newest)
        return PlanariaError(
            ErrorReason.UNAVAILABLE, "a peer was lost while the communicators were built"
        )


def retained_by(request: PlanRequest, view: PlanView) -> RetainedWork:
    """Return the work that an engine of a pipeline retains once a plan is in force."""
    return RetainedWork(
        generation=request.generation,
        step=request.committed_steps,
        step_microbatches=view.step_microbatches,
        regular_microbatches=view.regular_microbatches,
    )
