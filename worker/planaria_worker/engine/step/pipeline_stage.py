"""One stage of a pipeline, doing what the 1F1B schedule says."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planaria_worker.engine.evaluation import Evaluation
from planaria_worker.engine.groups import Group, GroupBroken, Work
from planaria_worker.engine.job import Job
from planaria_worker.engine.numerics.accumulate import GradientSums
from planaria_worker.engine.numerics.loss import summed_cross_entropy
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.process.failpoints import Failpoints
from planaria_worker.engine.process.stopwatch import Stopwatch
from planaria_worker.engine.step.schedule import (
    Action,
    Verb,
    max_in_flight,
    one_forward_one_backward,
)
from planaria_worker.engine.step.step_progress import StepProgress
from planaria_worker.models.stage import Microbatch, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastBackward:
    """The pass behind which the local sums hold all that a run adds to them."""

    microbatch: int
    before: Callable[[], None]
    when_summed: Callable[[int], None]


class PipelineStage:
    """Runs a stage's microbatches and adds up their gradients.

    A step may take several runs: its own microbatches, then others that a lost pipeline has left.
    All stages make the same runs. Where a stage knows the next one, it begins it in the room that
    the end of the present one leaves, so that the pipeline stays full: forward passes only, whose
    results wait for the next run. A neighbour that does not know it yet finds its messages then.

    Tensors that are received go into buffers made once: an input is needed until its microbatch's
    backward pass, a gradient only until it has been used.
    """

    def __init__(
        self,
        *,
        job: Job,
        view: PlanView,
        stage: Stage,
        sums: GradientSums,
        forward_group: Group | None,
        backward_group: Group | None,
        halt: threading.Event,
        stopwatch: Stopwatch,
        failpoints: Failpoints,
    ) -> None:
        num_stages = len(view.pipeline.stages)
        self._job = job
        self._stage = stage
        self._sums = sums
        self._check_halt = _halting(halt)
        sums.collect(stage.leaves, self._check_halt)
        self._forward_group = forward_group
        self._backward_group = backward_group
        self._stopwatch = stopwatch
        self._failpoints = failpoints
        self._rank = view.stage_index
        self._num_stages = num_stages
        first, last = stage.first_layer, stage.first_layer + stage.num_layers - 1
        num_inputs = max_in_flight(job.num_microbatches, self._rank, num_stages)
        self._input_buffers = [] if view.is_first else self._allocate(first - 1, num_inputs)
        self._gradient_buffers = [] if view.is_last else self._allocate(last, 1)
        self._num_received = 0
        self._sends: deque[tuple[Work, Tensor]] = deque()
        self._sends_ahead: deque[tuple[Work, Tensor]] = deque()
        self._max_sends = num_stages
        self._inputs: dict[int, Tensor] = {}
        self._outputs: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self._progress = StepProgress(step=-1, generation=-1)
        self._last: _LastBackward | None = None
        self._ahead: Callable[[], Sequence[int]] = tuple
        self._room_ahead = 0
        self._started: list[int] = []

    def run(
        self,
        progress: StepProgress,
        microbatches: Sequence[int],
        *,
        ahead: Callable[[], Sequence[int]],
        before_last: Callable[[], None],
        when_summed: Callable[[int], None],
    ) -> None:
        """Computes microbatches of the step; what is finished is entered in the ledger.

        Args:
            progress: of the step.
            microbatches: in the order of their backward passes.
            ahead: those of the step's next run; none while it is unknown, and then always these.
            before_last: called before the last backward pass; must wait for nobody.
            when_summed: called for each layer within the last backward pass, as soon as its local
                sum holds all these microbatches.

        Raises:
            GroupBroken: a neighbour is gone, the group was shut, or the stage was halted.
        """
        num_started = self._adopt_started(progress, microbatches)
        self._evaluate(microbatches)
        if self._job.is_closing(progress.step):
            self._train_nothing(microbatches)
            return
        self._last = _LastBackward(
            microbatch=microbatches[-1], before=before_last, when_summed=when_summed
        )
        self._ahead, self._room_ahead = ahead, 0
        try:
            for action in one_forward_one_backward(
                tuple(microbatches), self._rank, self._num_stages, num_started
            ):
                self._check_halt()
                self._do(action)
        finally:
            self._last, self._ahead = None, tuple  # which may know what knows this stage
        self._finish_computing()
        self._progress.out_of_range.update(self._sums.out_of_range())
        self._finish_sends(0)
        self._stopwatch.lap("wait")

    def _adopt_started(self, progress: StepProgress, microbatches: Sequence[int]) -> int:
        """Begins a run; returns how many of its forward passes the one before has made."""
        started, self._started = self._started, []
        is_of_step = progress.step == self._progress.step
        if started and (not is_of_step or [*microbatches[: len(started)]] != started):
            raise RuntimeError(f"microbatches {started} were begun, and are not what comes next")
        self._progress = progress
        self._sends.extend(self._sends_ahead)
        self._sends_ahead.clear()
        return len(started)

    @property
    def _is_evaluating(self) -> bool:
        evaluation = self._job.evaluation
        return evaluation is not None and evaluation.plan.is_due(self._progress.step)

    def _run_ahead(self) -> None:
        """Begins the next run as far as there is room, and its input has begun to arrive.

        What has not, may never: the stage before may wait for this one, and know nothing of that
        run yet. In a step that evaluates the run begins with that, so nothing may be ahead of it.
        The last stage never gets here: its backward passes follow their forward passes.
        """
        self._room_ahead += 1
        while len(self._started) < self._room_ahead and not self._is_evaluating:
            upcoming = self._ahead()[len(self._started) :]
            if not upcoming or not self._has_input():
                return
            self._started.append(upcoming[0])
            if not self._stage.is_first:
                self._receive_input(upcoming[0])
            self._forward(upcoming[0])
            outputs = self._outputs[upcoming[0]].detach().contiguous()
            self._begin_to_send(self._sends_ahead, self._forward_group, outputs, self._rank + 1)

    def _has_input(self) -> bool:
        group = self._forward_group
        return self._stage.is_first or (group is not None and group.has_message(self._rank - 1))

    def _evaluate(self, microbatches: Sequence[int]) -> None:
        """Runs what rides on the microbatches of this pass, if the step evaluates: forward only."""
        evaluation = self._job.evaluation
        if evaluation is None or not self._is_evaluating:
            return
        with self._stage.evaluating():
            for index in evaluation.plan.carried_by(microbatches):
                self._check_halt()
                self._evaluate_one(evaluation, index)

    def _evaluate_one(self, evaluation: Evaluation, index: int) -> None:
        step, stage = self._progress.step, self._stage
        self._failpoints.hit("evaluate", step, index)
        tokens = None
        if stage.is_first or stage.is_last:
            tokens = self._on_device(evaluation.rows(index))
        if stage.is_first and tokens is not None:
            inputs = tokens[:, :-1]
        else:
            inputs = self._input_buffers[0]  # nothing is kept: there is no backward pass
            self._receive(self._forward_group, inputs, self._rank - 1, index)
        outputs = stage(inputs, before_layer=self._check_halt)
        if stage.is_last and tokens is not None:
            loss = summed_cross_entropy(outputs, tokens[:, 1:])
            self._progress.evaluation_losses[index] = loss
        else:
            self._send(self._forward_group, outputs.contiguous(), self._rank + 1)
        self._progress.compute_seconds += self._stopwatch.lap("evaluate", index)

    def _train_nothing(self, microbatches: Sequence[int]) -> None:
        """In a closing step microbatches only carry what is evaluated."""
        self._finish_sends(0)
        self._stopwatch.lap("wait")
        if self._stage.is_last:
            self._progress.losses.update(dict.fromkeys(microbatches, torch.zeros(())))
        self._progress.finished.extend(microbatches)

    def _do(self, action: Action) -> None:
        # Not a table of bound methods: a cycle would keep activations until gc comes by.
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
                self._backward(action.microbatch)
            case Verb.SEND_GRADIENT:
                self._send_gradient(action.microbatch)
            case Verb.RUN_AHEAD:
                self._run_ahead()

    def _receive_input(self, microbatch: int) -> None:
        place = self._num_received % len(self._input_buffers)
        self._num_received += 1
        buffer = self._input_buffers[place].detach()  # a leaf of its own, the same memory
        self._receive(self._forward_group, buffer, self._rank - 1, microbatch)
        self._inputs[microbatch] = buffer.requires_grad_()

    def _forward(self, microbatch: int) -> None:
        step = self._progress.step
        self._failpoints.hit("forward", step, microbatch)
        stage, tokens = self._stage, None
        if stage.is_first or stage.is_last:
            samples = self._job.order.microbatch(step, microbatch)
            tokens = self._on_device(self._job.dataset.rows(samples))
        if stage.is_first and tokens is not None:
            inputs = tokens[:, :-1]
        else:
            inputs = self._inputs[microbatch]
        with self._timed("forward", microbatch):
            outputs = stage(inputs, Microbatch(step=step, index=microbatch), self._check_halt)
            if stage.is_last and tokens is not None:
                outputs = summed_cross_entropy(outputs, tokens[:, 1:])
                self._progress.losses[microbatch] = outputs.detach()
            self._outputs[microbatch] = outputs

    def _send_output(self, microbatch: int) -> None:
        outputs = self._outputs[microbatch].detach().contiguous()
        self._send(self._forward_group, outputs, self._rank + 1)

    def _receive_gradient(self, microbatch: int) -> None:
        (buffer,) = self._gradient_buffers
        self._receive(self._backward_group, buffer, self._rank + 1, microbatch)
        self._gradients[microbatch] = buffer

    def _backward(self, microbatch: int) -> None:
        self._failpoints.hit("backward", self._progress.step, microbatch)
        outputs = self._outputs.pop(microbatch)
        gradient = self._gradients.pop(microbatch, None)
        with self._timed("backward", microbatch), self._watching_sums(microbatch):
            torch.autograd.backward(outputs, gradient)
            self._progress.finished.append(microbatch)

    def _watching_sums(self, microbatch: int) -> AbstractContextManager[None]:
        """Around a backward pass: when the last one completes a layer's sum, that is told."""
        last = self._last
        if last is None or microbatch != last.microbatch:
            return contextlib.nullcontext()
        last.before()
        return self._sums.last_pass(last.when_summed)

    @contextlib.contextmanager
    def _timed(self, kind: str, microbatch: int) -> Iterator[None]:
        """Enters the time in the account, also that of a pass that ends early."""
        try:
            yield
        finally:
            self._progress.compute_seconds += self._stopwatch.lap(kind, microbatch)

    def _send_gradient(self, microbatch: int) -> None:
        gradient = self._inputs.pop(microbatch).grad
        if gradient is None:  # no path through this stage depends on its input
            raise RuntimeError(f"microbatch {microbatch} gave no gradient for the stage before")
        self._send(self._backward_group, gradient.contiguous(), self._rank - 1)

    def _on_device(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(rows).to(self._job.device, non_blocking=True)

    def _receive(self, group: Group | None, buffer: Tensor, source: int, microbatch: int) -> None:
        self._failpoints.hit("wait_peer", self._progress.step, microbatch)
        assert group is not None  # noqa: S101 - only the schedule of several stages receives
        self._finish_computing()
        group.recv(buffer, source)
        self._stopwatch.lap("wait")

    def _send(self, group: Group | None, tensor: Tensor, destination: int) -> None:
        self._begin_to_send(self._sends, group, tensor, destination)
        self._finish_sends(self._max_sends)
        self._stopwatch.lap("wait")

    def _begin_to_send(
        self,
        sends: deque[tuple[Work, Tensor]],
        group: Group | None,
        tensor: Tensor,
        destination: int,
    ) -> None:
        assert group is not None  # noqa: S101 - only the schedule of several stages sends
        sends.append((group.isend(tensor, destination), tensor))

    def _finish_sends(self, num_allowed: int) -> None:
        while len(self._sends) > num_allowed:
            work, _ = self._sends.popleft()
            work.wait()

    def _finish_computing(self) -> None:
        """Before a peer is waited for: what hangs on the device would look as if the peer did.

        It costs next to nothing: what a peer sends is received behind what the device was given.
        """
        if await_device(self._job.device):
            self._progress.compute_seconds += self._stopwatch.lap("device")

    def _allocate(self, layer: int, count: int) -> list[Tensor]:
        """Buffers for what a layer sends on."""
        job = self._job
        shape = job.output_shapes[layer]
        return [
            torch.empty(shape, dtype=job.compute_dtype, device=job.device) for _ in range(count)
        ]


def _halting(halt: threading.Event) -> Callable[[], None]:
    """Ends a stage's work where it is, once it was halted: nobody needs the rest of a pass.

    No method: hooks on parameters know it, and must not know the stage.
    """

    def check() -> None:
        if halt.is_set():
            raise GroupBroken("the pipeline was halted")

    return check


def await_device(device: torch.device) -> bool:
    """Waits until a device has computed what this thread gave it; False: that is done already."""
    if device.type != "cuda":
        return False
    torch.cuda.current_stream(device).synchronize()
    return True
