"""The gradient sum as one would write it who fears no failure: in place, overlapped, no copy.

Used with the plain schedule and with torch's. Gradients accumulate in one flat buffer, the highest
layer first, so that each bucket of layers is a slice of it; a bucket's all-reduce starts when the
last microbatch's backward pass has come through its layers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from planaria_worker.engine.job import Job
from planaria_worker.engine.numerics.norm import squared_norm
from planaria_worker.engine.numerics.optimizer import gradient_scale, update
from planaria_worker.models.stage import Stage


class Reducer:
    """Gradients of a stage, their sum over its replicas, and the update."""

    def __init__(
        self,
        job: Job,
        stage: Stage,
        num_own_microbatches: int,
        buckets: Sequence[Sequence[int]],
        replicas: dist.ProcessGroup,
        pipeline: dist.ProcessGroup,
    ) -> None:
        self._job = job
        self._stage = stage
        self._num_own = num_own_microbatches
        self._replicas = replicas
        self._pipeline = pipeline
        sizes = {layer: job.layouts[layer].num_elements for layer in stage.states}
        self._flat = torch.zeros(sum(sizes.values()))
        self.sums: dict[int, Tensor] = {}
        self._buckets: list[Tensor] = []
        start = 0
        for bucket in buckets:
            first = start
            for layer in bucket:
                self.sums[layer] = self._flat[start : start + sizes[layer]]
                start += sizes[layer]
            self._buckets.append(self._flat[first:start])
        self._bucket_of = {layer: b for b, layers in enumerate(buckets) for layer in layers}
        self._todo = [0] * len(buckets)
        self._works: list[dist.Work] = []
        for leaf in stage.leaves:
            leaf.parameter.grad = job.layouts[leaf.layer][leaf.name].view(self.sums[leaf.layer])
            register: Any = leaf.parameter.register_post_accumulate_grad_hook  # torch has no type
            register(self._hook(leaf.layer))

    def begin(self) -> None:
        """A new step."""
        self._flat.zero_()
        self._todo = [0] * len(self._buckets)
        for leaf in self._stage.leaves:
            self._todo[self._bucket_of[leaf.layer]] += self._num_own

    def _hook(self, layer: int) -> Callable[[Tensor], None]:
        bucket = self._bucket_of[layer]

        def count(_: Tensor) -> None:
            self._todo[bucket] -= 1
            while len(self._works) < len(self._todo) and not self._todo[len(self._works)]:
                tensor = self._buckets[len(self._works)]
                work = dist.all_reduce(tensor, group=self._replicas, async_op=True)
                assert work is not None
                self._works.append(work)

        return count

    def update(self, step: int) -> None:
        """Waits for the sums, clips by the norm over all stages, and updates."""
        for work in self._works:
            work.wait()
        assert len(self._works) == len(self._buckets)
        self._works.clear()
        job = self._job
        squares = [squared_norm(job.layouts[x], total, 1.0) for x, total in self.sums.items()]
        square = torch.tensor(sum(squares), dtype=torch.float64)
        dist.all_reduce(square, group=self._pipeline)
        norm = float(square.sqrt()) / job.tokens_per_step
        scale = gradient_scale(job.optimizer, unit=1.0, num_tokens=job.tokens_per_step, norm=norm)
        for layer, total in self.sums.items():
            state = self._stage.states[layer]
            update(state, total, config=job.optimizer, scale=scale, step=step)
