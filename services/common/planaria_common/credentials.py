"""The cluster's token: random, in a file of the data directory that only its owner can read."""

import os
import secrets
import stat
from pathlib import Path

from planaria_common.errors import ErrorReason, PlanariaError

TOKEN_FILE_NAME = "token"  # noqa: S105 - the name of a file, not a token
_MODE = 0o600


def ensure_token(data_dir: Path) -> str:
    """Return the token of a data directory; make both when they do not exist yet.

    Safe when several processes start at once: the first to link its file wins, all read the same.

    Raises:
        AccessError: the file can be read by others, or belongs to somebody else, or is empty.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    path = data_dir / TOKEN_FILE_NAME
    if not path.exists():
        _create(path)
    return read_token(path)


def read_token(path: Path) -> str:
    """Return the token in `path`, refusing a file that does not keep it secret.

    Raises:
        AccessError: see `ensure_token`; also when the file does not exist.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise _bad_file(path, f"cannot be read ({error.strerror})") from None
    with os.fdopen(descriptor, encoding="ascii") as file:
        facts = os.fstat(file.fileno())
        mode = stat.S_IMODE(facts.st_mode)
        if mode & 0o077:
            raise _bad_file(path, f"has mode {mode:04o}; `chmod 600 {path}` keeps others out")
        if facts.st_uid != os.geteuid():
            raise _bad_file(path, "belongs to another user")
        token = file.read().strip()
    if not token:
        raise _bad_file(path, "is empty; delete it to have a new one made")
    return token


def _create(path: Path) -> None:
    # Written to another file and then linked, so that no reader sees half a token.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink()


def _bad_file(path: Path, problem: str) -> PlanariaError:
    return PlanariaError(
        ErrorReason.UNAUTHENTICATED, f"token file {path} {problem}", {"path": str(path)}
    )
