"""The token file: a header and the tokens.

    bytes 0..HEADER_BYTES   magic, format, dtype, count, largest id, hash of contents and tokenizer
    then                    the tokens of all files, little-endian, one unsigned type for all

It is written next to its final path and renamed, so a reader finds all of it.
"""

import errno
import hashlib
import os
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from planaria_worker.engine.data.errors import DataError
from planaria_worker.engine.data.tokenizer import Tokenizer

HEADER_BYTES = 4096
_MAGIC = b"PLANARIA"
_FORMAT = 2
_HEADER = struct.Struct("<8sII QQ 64s")
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """An open token file; the tokens are memory-mapped."""

    path: Path
    tokens: NDArray[Any]
    """All tokens, one after the other."""
    max_token: int
    source: bytes
    """Hashes of the text files and of the tokenizer that it was made from."""


def open_token_file(path: Path) -> TokenFile:
    """Maps a token file.

    Raises:
        DataError: there is none, or it is damaged.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
    except OSError as error:
        raise DataError(f"cannot read the token file {path}: {error.strerror}") from error
    if len(header) < _HEADER.size:
        raise DataError(f"{path} is not a token file")
    magic, version, width, num_tokens, max_token, source = _HEADER.unpack(header)
    if (magic, version) != (_MAGIC, _FORMAT) or size != HEADER_BYTES + num_tokens * width:
        raise DataError(f"{path} is not a whole token file")
    tokens: NDArray[Any] = np.empty(0, _DTYPES[width])
    if num_tokens:
        tokens = np.memmap(path, _DTYPES[width], "r", HEADER_BYTES, (num_tokens,))
    return TokenFile(path=path, tokens=tokens, max_token=max_token, source=source)


def source_of(content: str, tokenizer: Tokenizer) -> bytes:
    """What a token file records of its origin; `content` is files.content_hash of the texts."""
    return bytes.fromhex(content) + hashlib.sha256(tokenizer.fingerprint.encode()).digest()


def write_token_file(path: Path, files: Sequence[Path], content: str, tokenizer: Tokenizer) -> None:
    """Encodes the text files and puts the token file in its place at once.

    Raises:
        DataError: a file cannot be read or encoded, or there is no space left.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".tokens-", delete=False) as file:
            temporary = Path(file.name)
            try:
                _write(file, files, content, tokenizer)
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        hint = "; free some space" if error.errno == errno.ENOSPC else ""
        where = error.filename or path.parent
        raise DataError(f"cannot make the token file: {where}: {error.strerror}{hint}") from error


def _write(file: Any, files: Sequence[Path], content: str, tokenizer: Tokenizer) -> None:
    width = next(width for width in _DTYPES if tokenizer.vocab_size <= 1 << 8 * width)
    num_tokens, max_token = 0, 0
    file.write(bytes(HEADER_BYTES))
    for path in files:
        with path.open("rb") as text:
            count, largest = _encode(text, file, tokenizer, _DTYPES[width])
        num_tokens += count
        max_token = max(max_token, largest)
    file.seek(0)
    source = source_of(content, tokenizer)
    file.write(_HEADER.pack(_MAGIC, _FORMAT, width, num_tokens, max_token, source))


def _encode(
    text: BinaryIO, output: Any, tokenizer: Tokenizer, dtype: np.dtype[Any]
) -> tuple[int, int]:
    """Appends one text file's tokens; returns how many and the largest id."""
    count, largest = 0, 0
    for block in tokenizer.encode(text):
        if len(block):
            count += len(block)
            largest = max(largest, int(block.max()))
            output.write(block.astype(dtype, copy=False).tobytes())
    return count, largest
