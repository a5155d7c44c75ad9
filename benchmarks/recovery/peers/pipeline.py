"""The paced model as a plain pipeline of two stages, for programs that know nothing of Planaria.

Imports torch alone: it runs in the environments of others.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.common.paced import VOCAB_SIZE, layers


class Settings:
    """What every worker receives in one environment variable, as JSON."""

    VARIABLE = "PLANARIA_PEER_SETTINGS"

    def __init__(self) -> None:
        values: dict[str, Any] = json.loads(os.environ[self.VARIABLE])
        self.model: dict[str, Any] = values["model"]
        self.num_microbatches: int = values["num_microbatches"]
        self.microbatch_size: int = values["microbatch_size"]
        self.sequence_length: int = values["sequence_length"]
        self.seed: int = values["seed"]
        self.folder = Path(values["folder"])
        """Where commits are written, and checkpoints."""

    def tokens(self, step: int, microbatch: int) -> Tensor:
        """Return the input and targets of a microbatch: [size, length + 1]."""
        generator = torch.Generator().manual_seed(self.seed + step * 1009 + microbatch)
        shape = (self.microbatch_size, self.sequence_length + 1)
        return torch.randint(VOCAB_SIZE, shape, generator=generator)


class Half(nn.Sequential):
    """One of the two stages of the model."""

    def __init__(self, settings: Settings, *, is_first: bool) -> None:
        torch.manual_seed(settings.seed)
        whole = layers(**settings.model)
        middle = len(whole) // 2
        super().__init__(*(whole[:middle] if is_first else whole[middle:]))
        self.is_first = is_first


def run_step(
    half: Half,
    settings: Settings,
    step: int,
    microbatches: Sequence[int],
    *,
    send: Callable[[Tensor], Any],
    receive: Callable[[Tensor], Any],
) -> None:
    """Add the gradients of microbatches, by 1F1B with two stages.

    Args:
        half: this rank's stage.
        settings: sizes.
        step: the step.
        microbatches: those of this pipeline.
        send: sends a tensor to the other stage; may return a handle that is waited for at the end.
        receive: receives into a tensor from the other stage.
    """
    handles: list[Any] = []
    shape = (settings.microbatch_size, settings.sequence_length, settings.model["hidden_size"])
    if not half.is_first:
        for microbatch in microbatches:
            hidden = torch.empty(shape)
            receive(hidden)
            hidden.requires_grad_()
            targets = settings.tokens(step, microbatch)[:, 1:]
            loss = cross_entropy(half(hidden).flatten(0, 1), targets.flatten(), reduction="sum")
            torch.autograd.backward(loss)
            assert hidden.grad is not None
            handles.append(send(hidden.grad))
    else:
        outputs: list[Tensor] = []

        def forward(microbatch: int) -> None:
            outputs.append(half(settings.tokens(step, microbatch)[:, :-1]))
            handles.append(send(outputs[-1].detach()))

        def backward() -> None:
            gradient = torch.empty(shape)
            receive(gradient)
            torch.autograd.backward(outputs.pop(0), gradient)

        forward(microbatches[0])
        for microbatch in microbatches[1:]:
            forward(microbatch)
            backward()
        backward()
    for handle in handles:
        if handle is not None:
            handle.wait()


class Commits:
    """Writes when steps were committed, on the clock that all processes of a machine share."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._path = settings.folder / f"{name}-{os.getpid()}.jsonl"

    def write(self, step: int, **detail: object) -> None:
        line = json.dumps({"step": step, "at": time.perf_counter(), **detail})
        with self._path.open("a") as file:
            file.write(line + "\n")
