"""The same schedule, written plainly: 1F1B over torch.distributed, with no thought of failure."""

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.overhead.reducer import Reducer
from planaria_worker.engine.job import Job
from planaria_worker.engine.numerics.loss import summed_cross_entropy
from planaria_worker.models.stage import Microbatch, Stage


class PlainPipeline:
    """One stage of a 1F1B pipeline; `before` and `behind` are its neighbours' ranks."""

    def __init__(
        self,
        job: Job,
        stage: Stage,
        reducer: Reducer,
        microbatches: tuple[int, ...],
        *,
        group: dist.ProcessGroup,
        before: int | None,
        behind: int | None,
        num_behind: int,
    ) -> None:
        self._job = job
        self._stage = stage
        self._reducer = reducer
        self._microbatches = microbatches
        self._group = group
        self._before = before
        self._behind = behind
        self._num_warmup = min(num_behind, len(microbatches))
        first, behind_last = stage.first_layer, stage.first_layer + stage.num_layers
        self._input_shape = job.input_shape(first)
        self._output_shape = job.output_shapes[behind_last - 1]
        self._in_flight: deque[tuple[Tensor | None, Tensor]] = deque()
        self._sends: deque[tuple[dist.Work | None, Tensor]] = deque()
        self.loss = 0.0

    def run_step(self, step: int) -> None:
        """One training step."""
        self._reducer.begin()
        losses: list[Tensor] = []
        ahead = iter(self._microbatches)
        for _ in range(self._num_warmup):
            self._forward(step, next(ahead), losses)
        for microbatch in ahead:
            self._forward(step, microbatch, losses)
            self._backward()
        for _ in range(self._num_warmup):
            self._backward()
        self._finish_sends(0)
        self._reducer.update(step)
        self.loss = sum(loss.item() for loss in losses)

    def _forward(self, step: int, microbatch: int, losses: list[Tensor]) -> None:
        tokens = None
        if self._before is None or self._behind is None:
            rows = self._job.dataset.rows(self._job.order.microbatch(step, microbatch))
            tokens = torch.from_numpy(rows)
        received = None
        if self._before is not None:
            received = torch.empty(self._input_shape)
            dist.recv(received, self._before, group=self._group)
            received.requires_grad_()
        inputs = received if tokens is None or received is not None else tokens[:, :-1]
        outputs = self._stage(inputs, Microbatch(step=step, index=microbatch))
        if self._behind is None:
            assert tokens is not None
            outputs = summed_cross_entropy(outputs, tokens[:, 1:])
            losses.append(outputs.detach())
        else:
            self._send(outputs.detach(), self._behind)
        self._in_flight.append((received, outputs))

    def _backward(self) -> None:
        received, outputs = self._in_flight.popleft()
        gradient = None
        if self._behind is not None:
            gradient = torch.empty(self._output_shape)
            dist.recv(gradient, self._behind, group=self._group)
        torch.autograd.backward(outputs, gradient)
        if received is not None:
            assert received.grad is not None
            assert self._before is not None
            self._send(received.grad, self._before)

    def _send(self, tensor: Tensor, rank: int) -> None:
        self._sends.append((dist.isend(tensor, rank, group=self._group), tensor))
        self._finish_sends(2)

    def _finish_sends(self, num_allowed: int) -> None:
        while len(self._sends) > num_allowed:
            work, _ = self._sends.popleft()
            assert work is not None
            work.wait()
