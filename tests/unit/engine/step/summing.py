"""Engines of a small model that sum what they say they computed, each on a thread.

Each microbatch adds 1 to a hexadecimal digit of its own: a sum says what is in it, and how often.
Layers are cut into pieces of one element each.
"""

import contextlib
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor

from planaria_worker.engine.fence import FencedError
from planaria_worker.engine.groups import GroupBroken, GroupSpec
from planaria_worker.engine.numerics.accumulate import FixedPoint, GradientSums, Piece
from planaria_worker.engine.reduction.gradient_reduction import GradientReduction
from planaria_worker.engine.step_progress import StepProgress
from planaria_worker.models.layout import LayerLayout, TensorLayout

NUM_LAYERS = 3
SIZES = (1, 3, 1)
"""Elements of each layer, and so its pieces: those that come in one are left in the copy."""
NUM_PIECES = sum(SIZES)
NUM_MICROBATCHES = 5
MICROBATCHES = range(NUM_MICROBATCHES)
TIMEOUT_SECONDS = 60.0


def times(element: Tensor) -> list[int]:
    """How often each microbatch is in an element of a sum."""
    return [(int(element) >> (4 * m)) & 15 for m in MICROBATCHES]


def pieces_of(layers: Sequence[int]) -> list[Piece]:
    """In the order in which they are summed."""
    return [
        Piece(layer=layer, start=start, end=start + 1)
        for layer in reversed(layers)
        for start in range(SIZES[layer])
    ]


def _layout(layer: int) -> LayerLayout:
    all_of_it = TensorLayout(name="values", shape=(SIZES[layer],), offset=0)
    return LayerLayout(layer=layer, tensors=(all_of_it,), num_elements=SIZES[layer])


@dataclass(kw_only=True, eq=False)
class Engine:
    """One stage, with all that it keeps of a step."""

    engine_id: str
    layers: range
    progress: StepProgress = field(init=False)
    sums: GradientSums = field(init=False)
    reduction: GradientReduction | None = None
    starts_left: int = 0
    """Pieces whose sum it may begin before it is fenced."""
    sums_left: int = 0
    """Those that it waits for before it is cut off."""
    is_cut_early: bool = False
    """Whether it is fenced before anything starts."""
    is_asking: bool = False

    def __post_init__(self) -> None:
        self.sums = GradientSums(
            [_layout(layer) for layer in self.layers],
            FixedPoint(unit_exponent=0, limit_exponent=60),
        )

    @property
    def pieces(self) -> list[Piece]:
        return pieces_of(self.layers)

    def has_whole(self, piece: Piece) -> bool:
        return self.sums.num_complete.get(piece.layer, 0) >= piece.end

    def begin_step(self, step: int, generation: int) -> None:
        self.progress = StepProgress(step=step, generation=generation)
        self.sums.clear()
        self.sums.settle(self.layers)

    def compute(self, microbatch: int, summed: GradientReduction | None = None) -> None:
        """One backward pass; behind the last one sums begin."""
        for layer in reversed(self.layers):
            self.sums.sums[layer][self.sums.num_complete.get(layer, 0) :] += 1 << (4 * microbatch)
            if summed is not None:
                summed.complete(layer)
        self.progress.finished.append(microbatch)

    def begin_attempt(
        self, generation: int, microbatches: Sequence[int], *, is_resumed: bool
    ) -> None:
        """As step.compute does, or step.attempt where nothing is left to compute.

        Who comes last has heard what is whole within its pass, the others only behind it.
        """
        assert self.reduction is not None
        missing = self.progress.missing(microbatches)
        last = missing[-1:]
        for microbatch in missing[: len(missing) - len(last)]:
            self.compute(microbatch)
        self.progress.begin_attempt(generation)
        self.is_asking = True
        self.reduction.begin(self.progress, self._check, last, is_resumed=is_resumed)
        self.is_asking = False
        for microbatch in last:
            self.compute(microbatch, self.reduction)
        for layer in reversed(self.layers):
            self.reduction.complete(layer)

    def finish_attempt(self) -> None:
        assert self.reduction is not None
        if self.reduction.is_begun(self.progress):
            with contextlib.suppress(FencedError, GroupBroken):
                self.reduction.run()

    def _check(self) -> None:
        if self.is_cut_early:
            raise FencedError(self.progress.generation, self.progress.generation + 1)
        if self.is_asking:
            return
        if not self.starts_left:
            raise FencedError(self.progress.generation, self.progress.generation + 1)
        self.starts_left -= 1


Allowed = Mapping[Engine, tuple[int, int]]
"""How many sums an engine may begin, and wait for."""


class Hall:
    """Where the engines of an attempt meet, each on a thread."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.changed = threading.Condition()
        self.parts: dict[tuple[str, int], dict[str, Tensor]] = {}
        """What the members of each group have given for its n-th sum."""
        self._present = {engine.engine_id for engine in engines}

    def finish(self, engines: Sequence[Engine]) -> None:
        with ThreadPoolExecutor(len(engines)) as threads:
            list(threads.map(self._finish, engines))

    def is_any_gone(self, members: Iterable[str]) -> bool:
        return not self._present.issuperset(members)

    def _finish(self, engine: Engine) -> None:
        engine.finish_attempt()
        with self.changed:
            self._present.discard(engine.engine_id)
            self.changed.notify_all()


class Meeting:
    """A group in memory: a sum that somebody will not give to is cut off."""

    is_shut = False

    def __init__(self, spec: GroupSpec, engine: Engine, hall: Hall) -> None:
        self.name, self.size, self.rank = spec.name, len(spec.members), spec.rank(engine.engine_id)
        self._members = spec.members
        self._engine = engine
        self._hall = hall
        self._num_started = 0

    def iall_reduce(self, buffer: Tensor) -> "Sum":
        with self._hall.changed:
            parts = self._hall.parts.setdefault((self.name, self._num_started), {})
            self._num_started += 1
            parts[self._engine.engine_id] = buffer.clone()
            self._hall.changed.notify_all()
        return Sum(
            engine=self._engine, members=self._members, hall=self._hall, buffer=buffer, parts=parts
        )


@dataclass(kw_only=True)
class Sum:
    """An all-reduce under way."""

    engine: Engine
    members: Collection[str]
    hall: Hall
    buffer: Tensor
    parts: dict[str, Tensor]

    @property
    def _is_sum(self) -> bool:
        return self.buffer.dim() == 1  # else it says what is whole

    @property
    def is_over(self) -> bool:
        return not self._is_sum and not self._missing()

    def wait(self) -> None:
        if self._is_sum and not self.engine.sums_left:
            self._break_off()
        self.engine.sums_left -= self._is_sum
        with self.hall.changed:
            self.hall.changed.wait_for(self._is_decided, TIMEOUT_SECONDS)
            if self._missing():
                self._break_off()
            self.buffer.copy_(torch.stack([*self.parts.values()]).sum(0))

    def _break_off(self) -> NoReturn:
        self.buffer.fill_(-1)  # half a sum
        raise GroupBroken("cut")

    def _is_decided(self) -> bool:
        missing = self._missing()
        return not missing or self.hall.is_any_gone(missing)

    def _missing(self) -> Collection[str]:
        return set(self.members) - self.parts.keys()
