"""Activates a plan: builds its groups, then trains in a new context or in the one that is kept."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime

from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_worker.engine.fence import FencedError
from planaria_worker.engine.groups import Communicators, GroupBroken
from planaria_worker.engine.groups.current_groups import CurrentGroups
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.recovery.current_training import CurrentTraining
from planaria_worker.engine.recovery.handover import Handover
from planaria_worker.engine.recovery.plan_request import Answer, Builder, PlanRequest, retained_by
from planaria_worker.engine.step.training_context import build_context
from planaria_worker.engine.training.step_reports import StepReporter
from planaria_worker.engine.training.training_loop import TrainingLoop
from planaria_worker.engine.training.training_thread import TrainingThread


class Activator:
    """Carries out Activate directives of a fenced engine; `accept` runs on the control thread."""

    def __init__(
        self,
        *,
        builder: Builder,
        current_training: CurrentTraining,
        current_groups: CurrentGroups,
        handover: Handover,
        loop: TrainingLoop,
        thread: TrainingThread,
        reporter: StepReporter,
        halt: Callable[[str], None],
    ) -> None:
        self._builder = builder
        self._resources = builder.resources
        self._fence = builder.resources.fence
        self._stopwatch = builder.resources.stopwatch
        self._current_training = current_training
        self._current_groups = current_groups
        self._handover = handover
        self._loop = loop
        self._thread = thread
        self._vitals = current_training.vitals
        self._reporter = reporter
        self._clock = builder.clock
        self._halt = halt

    def accept(self, request: PlanRequest, answer: Answer) -> Callable[[], None]:
        """Begin to activate a plan: build its groups as soon as the engine is halted.

        Called on the thread that also fences the engine, so that what is retained at a fence
        includes every plan accepted before it.

        Args:
            request: what to activate.
            answer: called when the plan is activated, or cannot be.

        Returns:
            The rest, for the training thread; an error that it raises is the answer as well.

        Raises:
            PlanariaError: the plan cannot be activated.
        """
        view = self._builder.view(request)
        if view.keeps_step:
            return self._accept_kept(request, view, answer)
        self._builder.require_layers(view, request.committed_steps)
        self._current_training.require_fenced(self._fence)
        self._halt("the plan changed")
        communicators = self._builder.communicators(request)
        begun: Future[datetime] = Future()

        def begin() -> None:
            try:
                begun.set_result(self._begin_groups(communicators, request, view))
            except Exception as error:
                begun.set_exception(error.with_traceback(None))  # which would keep the groups

        self._fence.when_halted(begin)
        return lambda: self._train_anew(request, view, communicators, begun, answer)

    # A new context.

    def _begin_groups(
        self, communicators: Communicators, request: PlanRequest, view: PlanView
    ) -> datetime:
        """Begin to build the groups of a new context; return when.

        Raises:
            StaleGenerationError: the engine has been fenced meanwhile.
        """
        start_time = self._clock.now()

        def change() -> None:
            self._current_groups.set_pipeline(())
            self._begin_generation(communicators, request, view)

        with self._current_training.lock:
            self._fence.install(request.generation, change)  # a fence from here on shuts them
            self._handover.watch(view, communicators)
        self._builder.start(communicators, view.groups, request)
        return start_time

    def _train_anew(
        self,
        request: PlanRequest,
        view: PlanView,
        communicators: Communicators,
        begun: Future[datetime],
        answer: Answer,
    ) -> None:
        """Train in a new context, whose groups are being built, until the engine must stop.

        Raises:
            FencedError: the engine was fenced before the context began.
            PlanariaError: the plan cannot be activated.
        """
        try:
            self._fence.begin(request.generation)
        except FencedError as error:
            communicators.shut(str(error))
            raise
        with self._thread.training():
            self._stopwatch.lap("idle")
            self._vitals.enter(EngineState.ENGINE_STATE_REBUILDING)
            try:
                # The fence has called `begin` by now: at the latest when the task before ended.
                start_time = begun.result(0)
            finally:
                del begun  # a failure would keep itself
            try:
                self._build_context(request, view, communicators)
            except GroupBroken as error:
                raise self._builder.explain(error, request.generation) from None
            self._stopwatch.lap("rebuild")
            self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
            answer(self._builder.activated(start_time, request.committed_steps))
            if not self._current_training.is_finished:
                self._loop.train_from_start()

    def _build_context(
        self, request: PlanRequest, view: PlanView, communicators: Communicators
    ) -> None:
        """Build the new context as soon as its groups are built."""
        self._resources.store.keep(view.hosted_layers)
        self._thread.drop_halted()
        self._current_training.committable_sums = None
        self._vitals.committed_steps = request.committed_steps
        groups = communicators.wait()
        step = request.committed_steps
        context = build_context(
            self._resources,
            view=view,
            generation=request.generation,
            step=step,
            groups=groups,
            states=self._resources.store.states,
            resumed_step=step if view.is_resuming else None,
        )
        with self._current_training.lock:
            self._current_groups.set_pipeline(context.pipeline_groups)
            retained_work = None if view.is_follower else retained_by(request, view)
            self._current_training.begin(context, retained_work, self._fence)

    # The context that is kept: a healthy pipeline finishes its step in another generation.

    def _accept_kept(
        self, request: PlanRequest, view: PlanView, answer: Answer
    ) -> Callable[[], None]:
        communicators = self._builder.communicators(request)
        with self._current_training.lock:
            context = self._current_training.require_retained_work(
                request, view, self._current_groups, self._fence
            )
            self._begin_generation(communicators, request, view)
            self._current_training.retained_work = retained_by(request, view)
        self._handover.watch(view, communicators)
        self._builder.start(communicators, view.data_parallel_groups, request, answer)
        self._fence.resume()
        context.next_plans.append(view)
        return lambda: self._train_on(request, communicators)

    def _train_on(self, request: PlanRequest, groups_being_built: Communicators) -> None:
        """Finish the step in flight in another generation, and train on.

        Even if it is fenced again, the engine makes its passes and the attempt, as every
        rank of the pipeline does.
        """
        with self._thread.training():
            if not self._current_training.has_live_context:
                broken = GroupBroken("the pipeline broke before its step went on")
                groups_being_built.shut(str(broken))
                self._reporter.report_fault(broken, request.generation, request.committed_steps)
                return
            self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
            self._stopwatch.lap("idle")
            self._current_training.committable_sums = None
            self._loop.train_renewed(request.generation, groups_being_built)

    def _begin_generation(
        self, communicators: Communicators, request: PlanRequest, view: PlanView
    ) -> None:
        """Begin a generation; keep the groups that are still intact."""
        kept = self._current_groups.begin(
            communicators, data_parallel=view.data_parallel_groups, kept=request.kept_groups
        )
        self._stopwatch.trace.event("groups_kept", names=list(kept))
