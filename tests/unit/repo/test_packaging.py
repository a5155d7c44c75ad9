"""The wheel is what users install: the five packages, and nothing else."""

import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from support.repository import PACKAGES, ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """A wheel built from this tree by the installed hatchling: nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_exactly_the_five_packages(wheel: zipfile.ZipFile) -> None:
    """No test, script or page is installed into site-packages."""
    roots = {name.split("/")[0] for name in wheel.namelist()}
    assert {root for root in roots if not root.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_holds_every_source_file(wheel: zipfile.ZipFile) -> None:
    """What imports in a checkout imports after an installation."""
    packed = set(wheel.namelist())
    sources = {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources - packed == set()


def test_every_package_is_typed(wheel: zipfile.ZipFile) -> None:
    """Type checkers read the annotations of an installed package only with py.typed."""
    assert {f"{name}/py.typed" for name in PACKAGES} <= set(wheel.namelist())


def test_the_licence_is_packed(wheel: zipfile.ZipFile) -> None:
    """The licence travels with the code."""
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


@pytest.mark.parametrize("group", ["console_scripts", "planaria.commands"])
def test_every_entry_point_leads_to_a_function(group: str) -> None:
    """Each command that the installation puts on the PATH starts."""
    ours = [point for point in entry_points(group=group) if point.value.startswith("planaria")]
    assert ours
    for point in ours:
        assert callable(point.load()), point.name


def test_one_version_of_torch_is_pinned() -> None:
    """`make install` takes the exact torch that the tests ran with."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert sum(pin.startswith("torch==") for pin in pins) == 1
    assert not any("+" in pin for pin in pins), "a local version would bind a pin to one build"


def test_only_tools_are_pinned_in_the_project() -> None:
    """A library that pins its dependencies cannot be installed with another one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    runtime = [*project["dependencies"], *(r for e in extras if e != "dev" for r in extras[e])]
    assert [requirement for requirement in runtime if "==" in requirement] == []


def test_no_machine_is_named() -> None:
    """Nothing that is committed depends on the machine it was written on."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".txt", ".json", ".ts"}:
            assert str(Path.home()) + "/" not in path.read_text(encoding="utf-8"), name
