"""A staged change of plan, made ready while training continues.

Groups are built and layers followed by threads of their own; nothing here touches the step in
flight. The training thread switches to it at a commit, or it is dropped.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from planaria_common.errors import ErrorReason, PlanariaError, invalid
from planaria_common.priority import stand_back
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import FencedError
from planaria_worker.engine.groups import GroupBroken
from planaria_worker.engine.layers.copy import LayerFollower
from planaria_worker.engine.memory import give_back_freed, is_out_of_memory
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.recovery.followed_layers import FollowedLayers
from planaria_worker.engine.recovery.plan_request import (
    Activated,
    Answer,
    Builder,
    PlanRequest,
    retained_by,
)
from planaria_worker.engine.recovery.probe_groups import probe_groups
from planaria_worker.engine.recovery.retained_work import RetainedWork
from planaria_worker.engine.step.training_context import TrainingContext, build_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The change is ready."""

    num_bytes: int
    start_time: datetime
    rebuild_end_time: datetime
    copy_end_time: datetime | None
    """None: no layer was missing."""


StagedAnswer = Callable[[Staged | Exception], None]
"""Answers a StagePlan; from any thread, and only the first answer counts."""


class StagedChange:
    """A change that is staged; taken once, or dropped.

    Attributes:
        request: what was asked for.
        view: the plan, as this engine sees it.
        is_voting: whether the engine votes on the commit at which it switches; another one learns
            of that commit from the engines whose layers it follows.
        communicators: the groups of the next generation.
    """

    def __init__(
        self,
        *,
        builder: Builder,
        job_secret: str,
        request: PlanRequest,
        view: PlanView,
        is_voting: bool,
        on_commit: Callable[["StagedChange", CommitRecord], None],
    ) -> None:
        """Open nothing yet.

        Args:
            builder: makes the groups.
            job_secret: authenticates to the sources of layers.
            request: what is asked for.
            view: the plan.
            is_voting: see the attributes.
            on_commit: called with each commit that all followed layers have.
        """
        self.request = request
        self.view = view
        self.is_voting = is_voting
        self.communicators = builder.communicators(request)
        self._builder = builder
        self._layers = FollowedLayers(
            builder.resources.job, request.layers, lambda record: on_commit(self, record)
        )
        self._follower = LayerFollower(
            self._layers, job_secret=job_secret, failpoints=builder.resources.failpoints
        )
        self._lock = threading.Lock()
        self._is_ready = False
        self._is_taken = False
        self._is_dropped = False
        self._context: TrainingContext | None = None
        self._answer: Answer | None = None
        self._result: Activated | Exception | None = None

    @property
    def generation(self) -> int:
        return self.request.generation

    @property
    def is_ready(self) -> bool:
        """Whether the engine may switch to it."""
        return self._is_ready

    @property
    def is_taken(self) -> bool:
        """Whether the engine has switched to it, or is about to."""
        return self._is_taken

    def start(self, answer: StagedAnswer) -> None:
        """Begin to make it ready."""

        def run() -> None:
            stand_back()  # there may be much to copy: failure handling comes first
            try:
                staged = self._make_ready()
            except Exception as error:
                self.drop()
                if is_out_of_memory(error):  # its traceback keeps what was allocated
                    error.with_traceback(None)
                    give_back_freed(self._builder.resources.job.device)
                answer(self._explain(error))
            else:
                self._is_ready = True
                answer(staged)

        try:
            threading.Thread(target=run, name="stage", daemon=True).start()
        except RuntimeError:  # there is no room for a thread
            self.drop()
            raise

    def drop(self) -> None:
        """Drop it, unless it is taken; waiting threads get an error.

        Its memory is free at once: an error or a thread may hold a reference to it for long.
        """
        with self._lock:
            if self._is_taken:
                return
            self._is_dropped = True
            self._context = None
        over = self._over()
        self._layers.fail(over)
        self._layers.release()
        self._follower.interrupt()
        self.communicators.shut("the staged change was dropped")
        self.finish(over)

    def answer_with(self, answer: Answer) -> bool:
        """Set the callback for the switch or its failure; return whether it is over."""
        with self._lock:
            self._answer = answer
            result = self._result
        if result is not None:
            answer(result)
        return result is not None

    def finish(self, result: Activated | Exception) -> None:
        """Report the result; only the first call counts."""
        with self._lock:
            if self._result is not None:
                return
            self._result = result
            answer = self._answer
        if answer is not None:
            answer(result)

    def wait_for_layers(self, version: int) -> None:
        """Wait until the followed layers are at a version, then stop following them.

        Raises:
            FencedError: the change was dropped.
            PlanariaError: they did not come in time, or their source is gone.
        """
        try:
            self._layers.wait_for(version, self.request.rebuild_timeout_seconds)
        except PlanariaError as error:
            raise PlanariaError(ErrorReason.UNAVAILABLE, error.message, error.metadata) from None
        self._follower.interrupt()

    def retained_work(self, committed_steps: int) -> RetainedWork | None:
        """Return the work that the engine retains after switching; None for a follower."""
        if self.view.is_follower:
            return None
        return retained_by(replace(self.request, committed_steps=committed_steps), self.view)

    def mark_taken(self) -> None:
        """Note that the engine switches to it: from now on `drop` does nothing."""
        with self._lock:
            self._is_taken = True

    def take(self, version: int) -> TrainingContext:
        """Hand over its context, and put its layers into the store; only if the pipeline changes.

        Raises:
            FencedError: the change was dropped.
        """
        with self._lock:
            context, self._context = self._context, None
            if context is None:
                raise self._over()
            self._is_taken = True
        self._builder.resources.store.install(self._layers.states, version)
        self._layers.release()
        return context

    def _make_ready(self) -> Staged:
        resources, clock = self._builder.resources, self._builder.clock
        start_time = clock.now()
        resources.failpoints.hit("stage")
        specs = self.view.data_parallel_groups if self.view.keeps_step else self.view.groups
        self._builder.start(self.communicators, specs, self.request)
        self._layers.allocate()
        if self.request.layers:
            self._follower.start(self.request.layers)
        groups = self.communicators.wait()
        probe_groups(
            groups,
            specs,
            device=resources.job.device,
            is_on_host=self._builder.transport != "nccl",
        )
        rebuild_end_time = clock.now()
        self._layers.wait_until_current()
        copy_end_time = clock.now() if self.request.layers else None
        if not self.view.keeps_step:
            self._keep(
                build_context(
                    resources,
                    view=self.view,
                    generation=self.generation,
                    step=0,
                    groups=groups,
                    states={**resources.store.states, **self._layers.states},
                )
            )
        return Staged(
            num_bytes=self._follower.num_bytes,
            start_time=start_time,
            rebuild_end_time=rebuild_end_time,
            copy_end_time=copy_end_time,
        )

    def _keep(self, context: TrainingContext) -> None:
        with self._lock:
            if self._is_dropped:
                raise self._over()
            self._context = context

    def _over(self) -> FencedError:
        return FencedError(self.generation, self._builder.resources.fence.newest)

    def _explain(self, error: Exception) -> Exception:
        if self._builder.resources.fence.newest > self.generation:
            return self._over()
        if isinstance(error, GroupBroken):
            return self._builder.explain(error, self.generation)
        return error


def require_stageable(
    request: PlanRequest, view: PlanView, context: TrainingContext | None
) -> None:
    """Make sure that a change can be staged while the engine trains.

    Args:
        request: what is asked for.
        view: the plan.
        context: what the engine trains in now; its layers follow every commit.

    Raises:
        PlanariaError: names the field and what would be right.
    """
    if any(pipeline.changed_microbatches for pipeline in request.pipelines):
        raise invalid("step_microbatches", "a plan that is staged has no step in flight")
    if any(not addresses for addresses in request.layers.values()):
        raise invalid("layers", "each layer that is followed has a source")
    if view.keeps_step:
        if context is None or context.halt.is_set() or context.view.is_follower:
            raise _not_so("keeps_step", "the engine is in no healthy pipeline")
        if context.view.pipeline.stages != view.pipeline.stages:
            raise _not_so("keeps_step", "its pipeline has other stages")
    held = set() if context is None else set(context.view.hosted_layers)
    missing = set(view.hosted_layers) - held - set(request.layers)
    if missing:
        names = ", ".join(map(str, sorted(missing)))
        raise _not_so("layers", f"layers {names} are in no step that the engine takes part in")


def _not_so(field: str, why: str) -> PlanariaError:
    return PlanariaError(ErrorReason.WRONG_STATE, f"{field}: {why}", {"field": field})
