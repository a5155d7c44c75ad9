"""The files of a corpus, and the hash by which nodes know that they hold the same ones."""

import glob
import hashlib
from collections.abc import Sequence
from pathlib import Path

from planaria_worker.engine.data.errors import TextError

_CHUNK_BYTES = 1 << 20


def matching_files(pattern: str) -> tuple[Path, ...]:
    """The files that a path or a glob pattern (`**` spans folders) names, sorted.

    Raises:
        TextError: there is none.
    """
    files = tuple(Path(name) for name in sorted(glob.glob(pattern, recursive=True)))  # noqa: PTH207 - absolute patterns
    found = tuple(path for path in files if path.is_file())
    if found:
        return found
    if files:
        raise TextError(f"{pattern} is a directory; give a pattern, {pattern}/*.txt")
    raise TextError(f"no file matches {pattern}")


def content_hash(files: Sequence[Path]) -> str:
    """SHA-256 over the sizes and contents of the files, in the given order; names do not count.

    Raises:
        TextError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        try:
            digest.update(path.stat().st_size.to_bytes(8, "little"))
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
        except OSError as error:
            raise TextError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()
