"""One layer by itself, run as a stage runs it: how long it takes, and what it keeps.

Engines measure with it while they warm up, and `planaria profile` when it is asked.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from planaria_worker.engine.job import Job
from planaria_worker.engine.numerics.accumulate import GradientSums
from planaria_worker.engine.numerics.loss import summed_cross_entropy
from planaria_worker.engine.numerics.norm import squared_norm
from planaria_worker.engine.numerics.optimizer import update
from planaria_worker.models.stage import Microbatch, build_stage
from planaria_worker.models.state import SLOTS, LayerState


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSeconds:
    """What one microbatch takes."""

    forward_seconds: float
    backward_seconds: float
    """With the rounding of its gradients into the sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """What a layer takes, as an engine measures it while it warms up."""

    seconds: PassSeconds
    parameter_bytes: int
    state_bytes: int
    activation_bytes: int
    output_bytes: int
    forward_flops: int


def kinds_of_layers(job: Job) -> tuple[int, ...]:
    """For each layer the first one like it; the first and the last are like no other."""
    first: dict[object, int] = {}
    kinds = []
    for layer in range(job.num_layers):
        is_end = layer in (0, job.num_layers - 1)
        kind = layer if is_end else (job.model.kind_of(layer), job.input_shape(layer))
        kinds.append(first.setdefault(kind, layer))
    return tuple(kinds)


class SingleLayer:
    """A layer with the states it needs (`hosted_layers`) and random input."""

    def __init__(self, job: Job, layer: int, states: Mapping[int, LayerState]) -> None:
        self._job = job
        self._stage = build_stage(
            job.model,
            layer,
            1,
            states,
            seed=job.seed,
            activation_checkpointing=job.activation_checkpointing,
        )
        layouts = [state.layout for state in self._stage.states.values()]
        self._sums = GradientSums(layouts, job.accumulation, str(job.device))
        self._sums.collect(self._stage.leaves)
        generator = torch.Generator().manual_seed(0)
        shape = (job.microbatch_size, job.dataset.sequence_length)
        tokens = torch.randint(job.vocab_size, (2, *shape), generator=generator)
        self._tokens, self._targets = tokens.to(job.device).unbind()
        self._input, self._gradient = (
            torch.randn(hidden, generator=generator).to(job.device, job.compute_dtype)
            for hidden in (job.input_shape(layer), job.output_shapes[layer])
        )

    def run(self) -> PassSeconds:
        """One forward and one backward pass."""
        inputs, targets = self._microbatch()
        start = self._now()
        outputs = self._forward(inputs, targets)
        middle = self._now()
        torch.autograd.backward(outputs, None if self._stage.is_last else self._gradient)
        return PassSeconds(forward_seconds=middle - start, backward_seconds=self._now() - middle)

    def update(self) -> float:
        """Takes the gradient's norm and updates the layer by nothing; returns the seconds."""
        start = self._now()
        for layer, state in self._stage.states.items():
            total = self._sums.sums[layer]
            squared_norm(state.layout, total, self._job.accumulation.unit)
            update(state, total, config=self._job.optimizer, scale=0.0, step=0)
        return self._now() - start

    @property
    def parameter_bytes(self) -> int:
        """Of every parameter that hosting this layer brings, a tied one included."""
        return sum(4 * state.layout.num_parameters for state in self._stage.states.values())

    @property
    def state_bytes(self) -> int:
        """Parameters, optimizer state, the gradients' sum and one microbatch's gradients."""
        states = self._stage.states.values()
        buffers = [state.buffer(slot) for state in states for slot in SLOTS]
        buffers += [s.compute for s in states if s.compute is not s.parameters]
        gradients = sum(s.layout.num_parameters * s.compute.element_size() for s in states)
        return gradients + sum(buffer.nbytes for buffer in (*buffers, *self._sums.sums.values()))

    def activation_and_output_bytes(self) -> tuple[int, int]:
        """What autograd keeps of one microbatch, and what goes to the next layer.

        Two forward passes at once: what both keep (parameters, position tables) is kept once for
        all microbatches, and does not count.
        """
        first, _outputs = self._kept()
        second, outputs = self._kept()
        activations = sum(second[address] for address in second.keys() - first.keys())
        return activations, 0 if self._stage.is_last else outputs.nbytes

    def forward_flops(self) -> int:
        """Operations of matrix products and attention, by torch's own count."""
        inputs, targets = self._microbatch()
        with FlopCounterMode(display=False) as counter:
            self._forward(inputs, targets)
        return int(counter.get_total_flops())

    def _kept(self) -> tuple[dict[int, int], Tensor]:
        """Bytes of the storages that autograd keeps, by address."""
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        inputs, targets = self._microbatch()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = self._forward(inputs, targets)
        return kept, outputs

    def _forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs: Tensor = self._stage(inputs, Microbatch(step=0, index=0))
        return summed_cross_entropy(outputs, targets) if self._stage.is_last else outputs

    def _microbatch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets in memory of their own, as every microbatch has."""
        targets = self._targets.clone()
        if self._stage.is_first:
            return self._tokens.clone(), targets
        return self._input.clone().requires_grad_(), targets

    def _now(self) -> float:
        if self._job.device.type == "cuda":
            torch.cuda.synchronize(self._job.device)
        return time.perf_counter()
