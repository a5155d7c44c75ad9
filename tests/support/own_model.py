"""A model of a user's own, as `model.import_path` takes it: support.own_model:layers."""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SLOWNESS = "OWN_MODEL_SLOWNESS"
"""Environment variable: by how much longer layers sleep on this node."""


class Embedding(nn.Module):
    """Tokens and positions; the positions are a constant."""

    positions: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.register_buffer("positions", torch.linspace(-1, 1, width), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(-1) / 100
        embedded: Tensor = self.tokens(tokens)
        return embedded + (places * self.positions).to(embedded.dtype)


class Mixer(nn.Module):
    """Sees what came before by a running mean; `scale` has no initial values but the default."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.drop = nn.Dropout(dropout)
        self.scale = nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        """After those of the parts: the way back begins small."""
        nn.init.normal_(self.down.weight, std=0.01)

    def forward(self, hidden: Tensor) -> Tensor:
        counts = torch.arange(1, hidden.shape[1] + 1, device=hidden.device).unsqueeze(-1)
        mean = (self.norm(hidden).cumsum(1) / counts).to(hidden.dtype)
        result: Tensor = hidden + self.scale * self.drop(self.down(self.up(mean).relu()))
        return result


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, seconds: float) -> Tensor:
        seconds *= float(os.environ.get(SLOWNESS, "1"))
        ctx.seconds = seconds
        time.sleep(seconds)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None


class Paced(nn.Module):
    """A layer without parameters that takes its time, forward and backward."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = _Sleep.apply(hidden, self.seconds)  # type: ignore[no-untyped-call]
        return result

    def extra_repr(self) -> str:
        """Layers that take longer are not alike."""
        return f"seconds={self.seconds}"


def _look(folder: Path, place: str) -> None:
    if (folder / f"{place}-always").exists():
        raise ValueError(f"this layer has a fault {place}")
    once = folder / place
    if once.exists():
        once.unlink()
        raise ValueError(f"this layer had a fault {place}")


class _Fault(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, folder: Path) -> Tensor:
        ctx.folder = folder
        _look(folder, "forward")
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        _look(ctx.folder, "backward")
        return gradients[0], None


class Faulty(nn.Module):
    """Raises once where a file `forward` or `backward` stands in its folder, or `...-always`."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = _Fault.apply(hidden, self.folder)  # type: ignore[no-untyped-call]
        return result


class _Spoil(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, place: str) -> Tensor:
        ctx.place = place
        return hidden * torch.inf if place == "forward" else hidden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0]
        return gradient * torch.inf if ctx.place == "backward" else gradient, None


class Spoiled(nn.Module):
    """A first layer that gives infinity for some microbatches, `forward` or `backward`."""

    def __init__(self, layer: nn.Module, microbatches: list[list[int]], place: str) -> None:
        super().__init__()
        self.layer = layer
        self.microbatches = microbatches
        self.place = place

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.layer(tokens)
        if tokens.flatten().tolist() in self.microbatches:
            embedded = _Spoil.apply(embedded, self.place)  # type: ignore[no-untyped-call]
        return embedded


def spoiled_layers(
    microbatches: list[list[int]], place: str = "forward", is_tied: bool = False
) -> list[nn.Module]:
    """Seven layers that cannot be trained with some microbatches, given by their tokens."""
    first, *rest = tied_layers() if is_tied else layers()
    return [Spoiled(first, microbatches, place), *rest]


def layers(width: int = 32, dropout: float = 0.1, sleep_seconds: float = 0.001) -> list[nn.Module]:
    """Seven layers, not all of the same width."""
    return [
        Embedding(width),
        Mixer(width, 48, dropout),
        Paced(sleep_seconds),
        Mixer(width, 48, dropout),
        nn.Linear(width, width // 2),
        Mixer(width // 2, 24, dropout),
        nn.Sequential(nn.LayerNorm(width // 2), nn.Linear(width // 2, 256, bias=False)),
    ]


def paced_layers(width: int = 32, sleep_seconds: float = 0.01) -> list[nn.Module]:
    """Six layers; two stages of three sleep equally long."""
    return [
        Embedding(width),
        Paced(sleep_seconds),
        Mixer(width, 48, 0.0),
        Mixer(width, 48, 0.0),
        Paced(sleep_seconds),
        nn.Linear(width, 256, bias=False),
    ]


def faulty_layers(folder: str, width: int = 32) -> list[nn.Module]:
    """Those that take their time, and one in the middle that may raise."""
    return [*(made := paced_layers(width))[:3], Faulty(folder), *made[3:]]


def tied_layers(width: int = 32, dropout: float = 0.1) -> list[nn.Module]:
    """Seven layers; the last one has no parameter but that of the first."""
    embedding = Embedding(width)
    projection = nn.Linear(width, 256, bias=False)
    projection.weight = embedding.tokens.weight
    return [
        embedding,
        Mixer(width, 48, dropout),
        Mixer(width, 48, dropout),
        nn.Linear(width, width),
        Mixer(width, 48, dropout),
        nn.LayerNorm(width),
        projection,
    ]
