"""Which sequences of a dataset are held out of training: a fixed choice, never stored."""

from dataclasses import dataclass, field

from planaria_worker.engine.data.dataset import Dataset
from planaria_worker.engine.data.order import KeyedPermutation
from planaria_worker.engine.numerics.rng import derive_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The sequences of a dataset, first those held out, then those of training.

    The choice follows from the contents of data and tokenizer alone: it is the same on every node,
    for every seed, and in a job that goes on from the checkpoint of another.
    """

    num_sequences: int
    num_held_out: int
    content: bytes
    """What names the contents: `TokenFile.source`."""
    _order: KeyedPermutation = field(init=False)

    def __post_init__(self) -> None:
        key = derive_key(0, "held out", self.content.hex())
        object.__setattr__(self, "_order", KeyedPermutation(self.num_sequences, key))

    @property
    def num_training(self) -> int:
        """Number of sequences that are not held out."""
        return self.num_sequences - self.num_held_out

    def held_out(self, position: int) -> int:
        """A sequence that is never trained on."""
        if not 0 <= position < self.num_held_out:
            raise IndexError(f"{position} is not in 0..{self.num_held_out - 1}")
        return self._order(position)

    def training(self, position: int) -> int:
        """A sequence that is."""
        if not 0 <= position < self.num_training:
            raise IndexError(f"{position} is not in 0..{self.num_training - 1}")
        return self._order(self.num_held_out + position)


def split_dataset(dataset: Dataset, fraction: float = 1.0) -> Split:
    """Holds out a part of the sequences, rounded down; all of them by default."""
    return Split(
        num_sequences=dataset.num_sequences,
        num_held_out=int(dataset.num_sequences * fraction),
        content=dataset.file.source,
    )
