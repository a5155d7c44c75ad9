"""Text to token ids: bytes as they are, or a Hugging Face `tokenizer.json`."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as HuggingFaceFile

from planaria_worker.engine.data.errors import DataError, TextError

_BLOCK_BYTES = 1 << 20


class Tokenizer(Protocol):
    """Turns a file into blocks of token ids; the same bytes always give the same ids."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def fingerprint(self) -> str:
        """Two tokenizers with the same fingerprint give the same ids."""
        ...

    def encode(self, file: BinaryIO) -> Iterator[NDArray[np.uint32 | np.uint8]]: ...


def load_tokenizer(name: str) -> Tokenizer:
    """`byte`, or the path of a Hugging Face tokenizer.json.

    Raises:
        DataError: the file does not exist or is not a tokenizer.
    """
    if name == "byte":
        return ByteTokenizer()
    path = Path(name)
    if path.is_dir():
        path /= "tokenizer.json"
    if not path.is_file():
        raise DataError(f"data.tokenizer: {name} is neither `byte` nor a tokenizer.json file")
    return HuggingFaceTokenizer(path)


class ByteTokenizer:
    """Every byte is a token: 256 of them, any file will do."""

    vocab_size = 256
    fingerprint = "byte"

    def encode(self, file: BinaryIO) -> Iterator[NDArray[np.uint32 | np.uint8]]:
        while block := file.read(_BLOCK_BYTES):
            yield np.frombuffer(block, dtype=np.uint8)


class HuggingFaceTokenizer:
    """A tokenizer.json, without special tokens around the text.

    Files are encoded in blocks of whole lines of about a megabyte, so that memory does not grow
    with the file; where the blocks end is part of what the data is.
    """

    def __init__(self, path: Path) -> None:
        contents = path.read_bytes()
        try:
            self._tokenizer = HuggingFaceFile.from_buffer(contents)
        except Exception as error:  # the library raises bare Exceptions
            raise DataError(f"data.tokenizer: {path} is not a tokenizer.json: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocab_size = max(ids, default=-1) + 1
        self.fingerprint = hashlib.sha256(contents).hexdigest()

    def encode(self, file: BinaryIO) -> Iterator[NDArray[np.uint32 | np.uint8]]:
        while lines := file.readlines(_BLOCK_BYTES):
            encoding = self._tokenizer.encode(_decode(b"".join(lines)), add_special_tokens=False)
            yield np.asarray(encoding.ids, dtype=np.uint32)


def _decode(block: bytes) -> str:
    try:
        return block.decode()
    except UnicodeDecodeError as error:
        raise TextError(
            f"not UTF-8 text ({error.reason}); use `tokenizer: byte` for such files"
        ) from error
