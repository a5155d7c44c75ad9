"""A model whose blocks sleep for as long as an accelerator of their own would compute.

    model: {import_path: "benchmarks.overhead.paced:layers", arguments: {...}}

The rank's processor is free meanwhile, as a host's is while its accelerator works. Shapes,
parameters, gradients and their traffic are those of a transformer of the same width.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn

VOCAB_SIZE = 256


class _Sleep(torch.autograd.Function):
    """The identity in its time; every element of the weight gets the hidden gradient's mean."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, forward_seconds: float, backward_seconds: float
    ) -> Tensor:
        ctx.shape, ctx.seconds = weight.shape, backward_seconds
        time.sleep(forward_seconds)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradient, gradient.mean().expand(ctx.shape).contiguous(), None, None


class Block(nn.Module):
    """As many parameters as a transformer's block, and none of its arithmetic."""

    def __init__(self, hidden_size: int, forward_seconds: float, backward_seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(12 * hidden_size, hidden_size))
        self.seconds = forward_seconds, backward_seconds

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = _Sleep.apply(  # type: ignore[no-untyped-call]  # torch has no type for it
            hidden, self.weight, *self.seconds
        )
        return output

    def extra_repr(self) -> str:
        return f"seconds={self.seconds}"


def layers(
    *, num_blocks: int, hidden_size: int, forward_seconds: float, backward_seconds: float
) -> list[nn.Module]:
    """Return an embedding, blocks that take the time of one microbatch, and a head."""
    blocks = [Block(hidden_size, forward_seconds, backward_seconds) for _ in range(num_blocks)]
    return [
        nn.Embedding(VOCAB_SIZE, hidden_size),
        *blocks,
        nn.Linear(hidden_size, VOCAB_SIZE, bias=False),
    ]
