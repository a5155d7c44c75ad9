"""What a stage exchanges with its neighbours: activations forward, gradients backward."""

from collections import deque

import torch
from torch import Tensor

from planaria_worker.engine.groups import PipelineLink, Work
from planaria_worker.engine.job import Job
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.step.schedule import max_in_flight


class StageLinks:
    """One stage's connections to the stage before and the stage after.

    Tensors are received into buffers that are allocated once: an input is needed until its
    microbatch's backward pass, a gradient only until it has been used.
    """

    def __init__(
        self,
        *,
        job: Job,
        view: PlanView,
        forward_group: PipelineLink | None,
        backward_group: PipelineLink | None,
    ) -> None:
        self._forward_group = forward_group
        self._backward_group = backward_group
        self._rank = view.stage_index
        num_stages = len(view.pipeline.stages)
        layers = view.stage.layers
        num_inputs = max_in_flight(job.num_microbatches, self._rank, num_stages)
        self._inputs = [] if view.is_first else _allocate(job, layers[0] - 1, num_inputs)
        self._gradient = None if self._rank == num_stages - 1 else _allocate(job, layers[-1], 1)[0]
        self._num_received = 0
        self._max_sends = num_stages
        self._sends: deque[tuple[Work, Tensor]] = deque()
        self._early_sends: deque[tuple[Work, Tensor]] = deque()

    def has_input(self) -> bool:
        """Whether the next input has begun to arrive; False also where the transport cannot say."""
        return self._forward_group is not None and self._forward_group.has_message(self._rank - 1)

    def receive_input(self) -> Tensor:
        """Wait for a microbatch's hidden states; they stay until its backward pass.

        Raises:
            GroupBroken: the pipeline is broken, or was shut.
        """
        buffer = self._inputs[self._num_received % len(self._inputs)]
        self._num_received += 1
        assert self._forward_group is not None  # noqa: S101 - there is a stage before
        self._forward_group.recv(buffer, self._rank - 1)
        return buffer.detach()  # a leaf of its own in the same memory

    def receive_gradient(self) -> Tensor:
        """Wait for the gradient of an output; it stays until the next one.

        Raises:
            GroupBroken: the pipeline is broken, or was shut.
        """
        assert self._backward_group is not None  # noqa: S101 - there is a stage after
        assert self._gradient is not None  # noqa: S101
        self._backward_group.recv(self._gradient, self._rank + 1)
        return self._gradient

    def send_output(self, output: Tensor) -> None:
        """Send hidden states to the stage after; wait only if too many sends are under way."""
        self._sends.append(self._begin_output(output))
        self.finish_sends(self._max_sends)

    def send_output_early(self, output: Tensor) -> None:
        """Send hidden states of the next round, and do not wait.

        The stage after may not know of that round yet, and so may not receive them before this
        round is over.
        """
        self._early_sends.append(self._begin_output(output))

    def send_gradient(self, gradient: Tensor) -> None:
        """Send the gradient of an input to the stage before, like `send_output`."""
        assert self._backward_group is not None  # noqa: S101 - there is a stage before
        gradient = gradient.contiguous()
        self._sends.append((self._backward_group.isend(gradient, self._rank - 1), gradient))
        self.finish_sends(self._max_sends)

    def finish_sends(self, num_allowed: int = 0) -> None:
        """Wait until at most so many sends of this round are under way."""
        while len(self._sends) > num_allowed:
            work, _ = self._sends.popleft()
            work.wait()

    def begin_round(self) -> None:
        """Count early sends as sends of the round that begins."""
        self._sends.extend(self._early_sends)
        self._early_sends.clear()

    def _begin_output(self, output: Tensor) -> tuple[Work, Tensor]:
        assert self._forward_group is not None  # noqa: S101 - there is a stage after
        output = output.detach().contiguous()
        return self._forward_group.isend(output, self._rank + 1), output


def _allocate(job: Job, layer: int, count: int) -> list[Tensor]:
    """Make buffers for the output of a layer."""
    shape = job.output_shapes[layer]
    return [torch.empty(shape, dtype=job.compute_dtype, device=job.device) for _ in range(count)]
