"""A model whose layers take a profiled time: small computations, then sleep until it is over.

As a job's own model: `model: {import_path: "benchmarks.common.paced:layers", arguments: {...}}`.
Six ranks on two cores are not six machines; sleeping ranks are, as far as overlap and idling go.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn

VOCAB_SIZE = 256


class _Pace(torch.autograd.Function):
    """The identity, whose backward pass takes a while."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Paced(nn.Module):
    """A layer that takes so long, and computes what another one does."""

    def __init__(self, body: nn.Module, forward_seconds: float, backward_seconds: float) -> None:
        super().__init__()
        self.body = body
        self.forward_seconds = forward_seconds
        self.backward_seconds = backward_seconds

    def forward(self, hidden: Tensor) -> Tensor:
        time.sleep(self.forward_seconds)
        output: Tensor = _Pace.apply(  # type: ignore[no-untyped-call]  # torch has no type for it
            self.body(hidden), self.backward_seconds
        )
        return output

    def extra_repr(self) -> str:
        return f"forward_seconds={self.forward_seconds}, backward_seconds={self.backward_seconds}"


def layers(
    *, num_blocks: int, hidden_size: int, forward_seconds: float, backward_seconds: float
) -> list[nn.Module]:
    """Return an embedding, blocks and a head; the blocks take the time.

    Args:
        num_blocks: layers between the embedding and the head.
        hidden_size: width of the hidden states.
        forward_seconds: of a block, for one microbatch.
        backward_seconds: of a block, for one microbatch.
    """
    blocks = [
        Paced(
            nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.GELU()),
            forward_seconds,
            backward_seconds,
        )
        for _ in range(num_blocks)
    ]
    return [
        nn.Embedding(VOCAB_SIZE, hidden_size),
        *blocks,
        nn.Linear(hidden_size, VOCAB_SIZE),
    ]
