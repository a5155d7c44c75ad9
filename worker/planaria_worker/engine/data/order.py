"""The order of samples: a shuffled pass over the data, then the next, without ever storing it.

Sample number k of a job lies in pass k // n, at place k % n of that pass; a permutation keyed by
(seed, pass) says which sequence that is. So any rank finds any microbatch in constant time and
memory, and no rank has a history.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from planaria_worker.engine.numerics.rng import derive_key

_NUM_ROUNDS = 6
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class KeyedPermutation:
    """A pseudorandom permutation of 0..size-1.

    A Feistel network permutes the next even power of two; following its cycle until it is back
    below `size` makes that a permutation of 0..size-1 (Black and Rogaway, "Ciphers with Arbitrary
    Finite Domains", CT-RSA 2002): fewer than four rounds of the walk on average.
    """

    size: int
    key: int

    def __call__(self, position: int) -> int:
        if not 0 <= position < self.size:
            raise IndexError(f"{position} is not in 0..{self.size - 1}")
        half_bits = max(1, (max(self.size - 1, 1).bit_length() + 1) // 2)
        value = self._encrypt(position, half_bits)
        while value >= self.size:
            value = self._encrypt(value, half_bits)
        return value

    def _encrypt(self, value: int, half_bits: int) -> int:
        mask = (1 << half_bits) - 1
        left, right = value >> half_bits, value & mask
        for number in range(_NUM_ROUNDS):
            left, right = right, left ^ (self._round(number, right) & mask)
        return left << half_bits | right

    def _round(self, number: int, half: int) -> int:
        """The finalizer of SplitMix64 over the half, the round and the key."""
        value = (half ^ self.key ^ number * 0x9E3779B97F4A7C15) & _MASK
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
        return (value ^ value >> 31) + (self.key >> 64) & _MASK


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """Which sequences microbatch i of step t holds: a pure function of (seed, t, i)."""

    num_sequences: int
    num_microbatches: int
    microbatch_size: int
    seed: int
    sequence_at: Callable[[int], int] = int
    """From 0..num_sequences-1 to the sequences that are trained on: others may be held out."""

    def microbatch(self, step: int, index: int) -> tuple[int, ...]:
        """The sequences of one microbatch, in order.

        Raises:
            IndexError: there is no such microbatch in a step.
        """
        if not 0 <= index < self.num_microbatches:
            raise IndexError(f"microbatch {index} is not in 0..{self.num_microbatches - 1}")
        first = (step * self.num_microbatches + index) * self.microbatch_size
        return tuple(self._sequence(first + row) for row in range(self.microbatch_size))

    def _sequence(self, sample: int) -> int:
        number, position = divmod(sample, self.num_sequences)
        return self.sequence_at(_pass_order(self.num_sequences, self.seed, number)(position))


@lru_cache(maxsize=4)
def _pass_order(num_sequences: int, seed: int, number: int) -> KeyedPermutation:
    return KeyedPermutation(num_sequences, derive_key(seed, "data", number))
