"""One stage of a pipeline: does what the 1F1B schedule says, and adds up its gradients."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.groups import GroupBroken, PipelineLink
from planaria_worker.engine.job import Job
from planaria_worker.engine.numerics.accumulate import GradientSums
from planaria_worker.engine.numerics.loss import summed_cross_entropy
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.step.evaluation_pass import EvaluationPass
from planaria_worker.engine.step.schedule import (
    Action,
    Verb,
    max_in_flight,
    one_forward_one_backward,
)
from planaria_worker.engine.step.stage_links import StageLinks
from planaria_worker.engine.step.stage_tokens import load_tokens
from planaria_worker.engine.step_progress import StepProgress
from planaria_worker.engine.telemetry import Stopwatch
from planaria_worker.models.stage import Microbatch, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of 1F1B: all stages of a pipeline run the same rounds of a step."""

    microbatches: tuple[int, ...]
    """In the order of their backward passes."""
    next_round: Callable[[], Sequence[int]]
    """The microbatches of the step's next round: none while it is unknown, then always the same."""
    before_last_backward: Callable[[], None]
    """Called before the last backward pass; must not wait for a peer."""
    when_summed: Callable[[int], None]
    """Called for each layer within the last backward pass, as soon as its local sum is complete."""


class PipelineStage:
    """Runs rounds of 1F1B over a stage's microbatches."""

    def __init__(
        self,
        *,
        job: Job,
        view: PlanView,
        stage: Stage,
        sums: GradientSums,
        forward_group: PipelineLink | None,
        backward_group: PipelineLink | None,
        halt: threading.Event,
        stopwatch: Stopwatch,
        failpoints: Failpoints,
    ) -> None:
        self._job = job
        self._stage = stage
        self._rank = view.stage_index
        self._num_stages = len(view.pipeline.stages)
        self._max_in_flight = max_in_flight(job.num_microbatches, self._rank, self._num_stages)
        self._sums = sums
        self._check_halt = _halting(halt)
        sums.collect(stage.leaves, self._check_halt)
        self._links = StageLinks(
            job=job, view=view, forward_group=forward_group, backward_group=backward_group
        )
        self._evaluation: EvaluationPass | None = None
        if job.evaluation is not None:
            self._evaluation = EvaluationPass(
                evaluation=job.evaluation,
                stage=stage,
                device=job.device,
                check_halt=self._check_halt,
                stopwatch=stopwatch,
                failpoints=failpoints,
            )
        self._stopwatch = stopwatch
        self._failpoints = failpoints
        self._inputs: dict[int, Tensor] = {}
        self._outputs: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self._progress = StepProgress(step=-1, generation=-1)
        self._begun: list[int] = []
        """Microbatches of the next round whose forward pass is done."""

    def run(self, progress: StepProgress, round_: Round) -> None:
        """Compute a round's microbatches of the step; what is finished is entered in `progress`.

        Raises:
            GroupBroken: a neighbour is gone, the group was shut, or the stage was halted.
        """
        num_begun = self._adopt_begun(progress, round_)
        self._evaluate(round_)
        if self._job.is_closing(progress.step):
            self._close(round_)
            return
        for action in one_forward_one_backward(
            round_.microbatches, self._rank, self._num_stages, num_begun
        ):
            self._check_halt()
            self._do(action, round_)
        self._finish_computing()
        progress.out_of_range.update(self._sums.out_of_range())
        self._finish_sends()

    # Not a table of bound methods: a reference cycle would keep activations until the next gc.
    def _do(self, action: Action, round_: Round) -> None:
        match action.verb:
            case Verb.RECEIVE_INPUT:
                self._receive_input(action.microbatch)
            case Verb.FORWARD:
                self._forward(action.microbatch)
            case Verb.SEND_OUTPUT:
                self._send_output(action.microbatch)
            case Verb.RECEIVE_GRADIENT:
                self._receive_gradient(action.microbatch)
            case Verb.BACKWARD:
                self._backward(action.microbatch, round_)
            case Verb.SEND_GRADIENT:
                self._send_gradient(action.microbatch)
            case Verb.BEGIN_NEXT_ROUND:
                self._begin_next_round(round_)

    # The verbs of the schedule.

    def _receive_input(self, microbatch: int) -> None:
        self._before_wait(microbatch)
        self._inputs[microbatch] = self._links.receive_input().requires_grad_()
        self._stopwatch.lap("wait")

    def _forward(self, microbatch: int) -> None:
        step = self._progress.step
        self._failpoints.hit("forward", step, microbatch)
        tokens = load_tokens(self._stage, self._job.device, lambda: self._rows(step, microbatch))
        inputs = self._inputs[microbatch] if tokens.inputs is None else tokens.inputs
        with self._timed("forward", microbatch):
            outputs = self._stage(inputs, Microbatch(step=step, index=microbatch), self._check_halt)
            if tokens.targets is not None:
                outputs = summed_cross_entropy(outputs, tokens.targets)
                self._progress.losses[microbatch] = outputs.detach()
            self._outputs[microbatch] = outputs

    def _rows(self, step: int, microbatch: int) -> NDArray[np.int64]:
        return self._job.dataset.rows(self._job.order.microbatch(step, microbatch))

    def _send_output(self, microbatch: int) -> None:
        self._links.send_output(self._outputs[microbatch])
        self._stopwatch.lap("wait")

    def _receive_gradient(self, microbatch: int) -> None:
        self._before_wait(microbatch)
        self._gradients[microbatch] = self._links.receive_gradient()
        self._stopwatch.lap("wait")

    def _backward(self, microbatch: int, round_: Round) -> None:
        self._failpoints.hit("backward", self._progress.step, microbatch)
        outputs = self._outputs.pop(microbatch)
        gradient = self._gradients.pop(microbatch, None)
        with self._timed("backward", microbatch), contextlib.ExitStack() as last_pass:
            if microbatch == round_.microbatches[-1]:
                round_.before_last_backward()
                last_pass.enter_context(self._sums.last_pass(round_.when_summed))
            torch.autograd.backward(outputs, gradient)
            self._progress.finished.append(microbatch)

    def _send_gradient(self, microbatch: int) -> None:
        gradient = self._inputs.pop(microbatch).grad
        if gradient is None:  # no path through this stage depends on its input
            raise RuntimeError(f"microbatch {microbatch} gave no gradient for the stage before")
        self._links.send_gradient(gradient)
        self._stopwatch.lap("wait")

    # Early passes: the forward passes of the next round that this round has room for.

    def _begin_next_round(self, round_: Round) -> None:
        """Begin the next round as far as memory allows and its input has begun to arrive.

        Input that has not begun to arrive may never come: the stage before may wait for this one,
        and not know of that round yet. A round of a step that evaluates begins with the evaluation,
        so nothing may come before it. The last stage does not get here: it has no cool-down.
        """
        while len(self._outputs) < self._max_in_flight and not self._is_evaluating:
            next_microbatches = round_.next_round()[len(self._begun) :]
            if not next_microbatches or not (self._stage.is_first or self._links.has_input()):
                return
            microbatch = next_microbatches[0]
            self._begun.append(microbatch)
            if not self._stage.is_first:
                self._receive_input(microbatch)
            self._forward(microbatch)
            self._links.send_output_early(self._outputs[microbatch])

    def _adopt_begun(self, progress: StepProgress, round_: Round) -> int:
        """Take over what was begun early; return how many forward passes that is."""
        begun, self._begun = self._begun, []
        is_of_step = progress.step == self._progress.step
        if begun and (not is_of_step or [*round_.microbatches[: len(begun)]] != begun):
            raise RuntimeError(f"microbatches {begun} were begun, and are not what comes next")
        self._progress = progress
        self._links.begin_round()
        return len(begun)

    # Evaluation.

    @property
    def _is_evaluating(self) -> bool:
        return self._evaluation is not None and self._evaluation.is_due(self._progress.step)

    def _evaluate(self, round_: Round) -> None:
        if self._evaluation is not None and self._is_evaluating:
            self._evaluation.run(
                self._progress, round_.microbatches, self._links, self._before_wait
            )

    def _close(self, round_: Round) -> None:
        """Finish a closing step, which trains nothing: microbatches only carry the evaluation."""
        self._finish_sends()
        if self._stage.is_last:
            self._progress.losses.update(dict.fromkeys(round_.microbatches, torch.zeros(())))
        self._progress.finished.extend(round_.microbatches)

    # Time and waiting.

    def _before_wait(self, microbatch: int) -> None:
        self._failpoints.hit("wait_peer", self._progress.step, microbatch)
        self._finish_computing()

    def _finish_computing(self) -> None:
        """Wait for the device before waiting for a peer, so that a hang is blamed on the right one.

        It costs next to nothing: a peer's message is received after the device's earlier work.
        """
        if await_device(self._job.device):
            self._progress.compute_seconds += self._stopwatch.lap("device")

    def _finish_sends(self) -> None:
        self._links.finish_sends()
        self._stopwatch.lap("wait")

    @contextlib.contextmanager
    def _timed(self, kind: str, microbatch: int) -> Iterator[None]:
        """Count the time of a pass, also of one that ends early."""
        try:
            yield
        finally:
            self._progress.compute_seconds += self._stopwatch.lap(kind, microbatch)


def _halting(halt: threading.Event) -> Callable[[], None]:
    """Return a check that ends a halted stage's pass; no method, as hooks must not hold a stage."""

    def check() -> None:
        if halt.is_set():
            raise GroupBroken("the pipeline was halted")

    return check


def await_device(device: torch.device) -> bool:
    """Wait until a device has computed what this thread gave it; False: it computes at once."""
    if device.type != "cuda":
        return False
    torch.cuda.current_stream(device).synchronize()
    return True
