"""Whatever is missing is named in one line, with the command that installs it."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.repository import ROOT


def _run(
    script: str, *arguments: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / script), *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _fake_command(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def few_commands(tmp_path: Path) -> Path:
    """A folder for PATH with the basic tools, and without Python and Node."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname", "df", "awk", "id", "sed", "find", "touch"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return folder


def test_no_python(few_commands: Path, tmp_path: Path) -> None:
    """A machine without a fitting Python is told which one and how."""
    environment = {"PATH": str(few_commands), "VENV": str(tmp_path / "venv")}
    result = _run("install.sh", environment=environment)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "Python 3.11 or newer is missing. Install it with: " in line


def test_no_venv_module(few_commands: Path, tmp_path: Path) -> None:
    """Debian's Python without python3-venv."""
    _fake_command(few_commands, "python3", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    _fake_command(few_commands, "apt-get", "")
    environment = {"PATH": str(few_commands), "VENV": str(tmp_path / "venv")}
    result = _run("install.sh", environment=environment)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("planaria: Python's venv is missing. Install it with: ")
    assert line.endswith("apt-get install -y python3-venv")


def test_no_disk(few_commands: Path, tmp_path: Path) -> None:
    """A full disk is told before anything is downloaded."""
    (few_commands / "df").unlink()  # the real one
    _fake_command(few_commands, "df", "echo header; echo '/dev/x 9000 8000 1000 90% /'")
    environment = {"PATH": str(few_commands), "VENV": str(tmp_path / "venv")}
    result = _run("install.sh", environment=environment)
    assert result.returncode == 1
    assert "only 1000 MB of disk are free here and 3000 MB are needed" in result.stderr


def test_a_wrong_accelerator() -> None:
    """A misspelt ACCELERATOR does not silently become another one."""
    result = _run("install.sh", environment={"ACCELERATOR": "gpu", "VENV": ".venv"})
    assert result.returncode == 1
    assert result.stderr.strip() == "planaria: ACCELERATOR is 'gpu'; it must be cpu or cuda"


@pytest.mark.parametrize(
    ("version", "problem"), [(None, "node is missing"), ("v18.20.0", "found v18.20.0")]
)
def test_no_fitting_node(few_commands: Path, version: str | None, problem: str) -> None:
    """The page needs Node; the demo goes on without it and says so."""
    if version:
        _fake_command(few_commands, "npm", "")
        _fake_command(few_commands, "node", f'[ "$1" = -e ] && exit 1; echo {version}')
    environment = {"PATH": str(few_commands)}
    required = _run("web.sh", "check", environment=environment)
    assert required.returncode == 1
    assert f"it needs Node 20.19 or newer ({problem})" in required.stderr
    optional = _run("web.sh", "build", "--optional", environment=environment)
    assert optional.returncode == 0
    assert optional.stdout.rstrip().endswith("the terminal shows everything too")


def test_npm_fails(few_commands: Path) -> None:
    """Without a registry the demo goes on and says so; asked for the page alone, it fails."""
    web = few_commands.parent / "web"
    (web.parent / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "web.sh", web.parent / "scripts")
    web.mkdir()
    (web / "package-lock.json").touch()
    _fake_command(few_commands, "node", "exit 0")
    _fake_command(few_commands, "npm", "exit 1")
    script = str(web.parent / "scripts" / "web.sh")
    environment = {"PATH": str(few_commands)}
    required = _run(script, "build", environment=environment)
    assert required.returncode == 1
    assert "npm could not install its packages" in required.stderr
    assert _run(script, "build", "--optional", environment=environment).returncode == 0
