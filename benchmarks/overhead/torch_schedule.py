"""The same step by torch.distributed.pipelining's Schedule1F1B, with the plain sum and update."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.overhead.reducer import Reducer
from planaria_worker.engine.job import Job
from planaria_worker.engine.numerics.loss import summed_cross_entropy
from planaria_worker.models.stage import Microbatch, Stage


class TorchPipeline:
    """One stage of a pipeline that torch drives."""

    def __init__(
        self,
        job: Job,
        stage: Stage,
        reducer: Reducer,
        microbatches: tuple[int, ...],
        *,
        group: dist.ProcessGroup,
        stage_index: int,
        num_stages: int,
    ) -> None:
        self._job = job
        self._module = _OneInput(stage, microbatches)
        self._reducer = reducer
        self._microbatches = microbatches
        self._is_first = stage_index == 0
        self._is_last = stage_index == num_stages - 1
        self._schedule = Schedule1F1B(
            PipelineStage(self._module, stage_index, num_stages, torch.device("cpu"), group=group),
            len(microbatches),
            loss_fn=summed_cross_entropy,
            scale_grads=False,
        )
        self.loss = 0.0

    def run_step(self, step: int) -> None:
        """One training step."""
        self._reducer.begin()
        self._module.begin(step)
        job = self._job
        if self._is_first or self._is_last:
            sequences = [s for m in self._microbatches for s in job.order.microbatch(step, m)]
            tokens = torch.from_numpy(job.dataset.rows(sequences))
        losses: list[Tensor] = []
        if self._is_first:
            self._schedule.step(tokens[:, :-1])
        elif self._is_last:
            self._schedule.step(target=tokens[:, 1:], losses=losses)
        else:
            self._schedule.step()
        self._reducer.update(step)
        self.loss = sum(loss.item() for loss in losses)


class _OneInput(nn.Module):
    """A stage that knows by itself which microbatch it computes."""

    def __init__(self, stage: Stage, microbatches: tuple[int, ...]) -> None:
        super().__init__()
        self._stage = stage
        self._microbatches = microbatches
        self._upcoming: Iterator[Microbatch] = iter(())

    def begin(self, step: int) -> None:
        self._upcoming = (Microbatch(step=step, index=index) for index in self._microbatches)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self._stage(inputs, next(self._upcoming, Microbatch(step=0, index=0)))
        return outputs
