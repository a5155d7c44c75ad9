import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from planaria_common.credentials import TOKEN_FILE_NAME, ensure_token, read_token
from planaria_common.errors import AccessError


def test_the_token_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    token = ensure_token(tmp_path / "data")
    path = tmp_path / "data" / TOKEN_FILE_NAME
    assert ensure_token(tmp_path / "data") == read_token(path) == token
    assert len(token) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [TOKEN_FILE_NAME]


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: ensure_token(tmp_path), range(32)))
    assert len(tokens) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    ensure_token(tmp_path)
    path = tmp_path / TOKEN_FILE_NAME
    path.chmod(mode)
    with pytest.raises(AccessError, match=rf"has mode {mode:04o}; `chmod 600 .*token`"):
        read_token(path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    ensure_token(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / TOKEN_FILE_NAME)
    with pytest.raises(AccessError, match="cannot be read"):
        read_token(link)


def test_an_absent_or_empty_file_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"cannot be read \(No such file or directory\)"):
        read_token(tmp_path / "none")
    empty = tmp_path / "empty"
    empty.touch(mode=0o600)
    with pytest.raises(AccessError, match="is empty"):
        read_token(empty)
