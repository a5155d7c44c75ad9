"""The data of a job as an engine sees it.

dataset = open_dataset(pattern="corpus/*.txt", tokenizer="byte", cache_dir=Path("cache"),
sequence_length=128, vocab_size=256)
order = SampleOrder(num_sequences=dataset.num_sequences, num_microbatches=16,
microbatch_size=2, seed=7)
tokens = dataset.rows(order.microbatch(step, index))     # [2, 129]
"""

import fcntl
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planaria_worker.engine.data.errors import DataError, TextError
from planaria_worker.engine.data.files import content_hash, matching_files
from planaria_worker.engine.data.token_file import (
    TokenFile,
    open_token_file,
    source_of,
    write_token_file,
)
from planaria_worker.engine.data.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Sequences of `sequence_length` tokens, each with the one that follows, over a token file."""

    file: TokenFile
    sequence_length: int

    @property
    def num_sequences(self) -> int:
        return max(0, len(self.file.tokens) - 1) // self.sequence_length

    def rows(self, sequences: Sequence[int]) -> NDArray[np.int64]:
        """Token ids [len(sequences), sequence_length + 1].

        Inputs are all but the last column, targets all but the first.
        """
        starts = np.asarray(sequences, dtype=np.int64)[:, None] * self.sequence_length
        window = np.arange(self.sequence_length + 1)
        rows: NDArray[np.int64] = self.file.tokens[starts + window].astype(np.int64)
        return rows


def open_dataset(
    *,
    pattern: str,
    tokenizer: str,
    cache_dir: Path,
    sequence_length: int,
    vocab_size: int | None,
    field: str = "data.path",
) -> Dataset:
    """Finds the files and opens their token file, making it first if no process has yet.

    `vocab_size` is None where the model must be built to know it. `field` is what gives `pattern`
    in the job file, for errors.

    Raises:
        DataError: no file matches, one cannot be read or encoded, the text is shorter than one
            sequence, or a token is not in the model's vocabulary.
    """
    try:
        file = _token_file(matching_files(pattern), load_tokenizer(tokenizer), cache_dir)
    except TextError as error:
        raise DataError(f"{field}: {error}") from error
    return _checked(Dataset(file=file, sequence_length=sequence_length), vocab_size, field)


def _checked(dataset: Dataset, vocab_size: int | None, field: str) -> Dataset:
    if vocab_size is not None and dataset.file.max_token >= vocab_size:
        raise DataError(
            f"model.vocab_size: {vocab_size}, but {field} has token {dataset.file.max_token}; "
            f"it must be at least {dataset.file.max_token + 1}"
        )
    if not dataset.num_sequences:
        raise DataError(
            f"data.sequence_length: {field} has {len(dataset.file.tokens)} tokens, "
            f"one sequence needs {dataset.sequence_length + 1}"
        )
    return dataset


def _token_file(files: Sequence[Path], tokenizer: Tokenizer, cache_dir: Path) -> TokenFile:
    """Several processes may ask at once: one makes the file, the others wait for its lock.

    The lock only saves work. Where it does not hold (some network file systems) all of them make
    the same file, and the last rename wins.
    """
    content = content_hash(files)
    key = hashlib.sha256(f"{content} {tokenizer.fingerprint}".encode()).hexdigest()[:32]
    path = cache_dir / f"{key}.tokens"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        lock = (cache_dir / f"{key}.lock").open("w")
    except OSError as error:
        raise DataError(f"cannot make the token file: {cache_dir}: {error.strerror}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            found = open_token_file(path)
            if found.source == source_of(content, tokenizer):
                return found
        except DataError:  # not made yet, or damaged
            pass
        write_token_file(path, files, content, tokenizer)
        return open_token_file(path)
