"""Imports that no contract of [tool.importlinter] covers; `make lint` checks the others."""

import re

import pytest

from support.repository import PACKAGES, ROOT


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_nothing_outside_the_tests_imports_them(folder: str) -> None:
    imports = re.compile(r"^\s*(?:from|import) (?:tests|support|unit|integration|e2e)\b", re.M)
    found = [
        path.name for path in (ROOT / folder).rglob("*.py") if imports.search(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("made", "where"),
    [
        (r"grpc\.(?:aio\.)?(?:in)?secure_channel\(", "grpcclient.py"),
        (r"grpc\.(?:aio\.)?server\(", "grpcserver.py"),
    ],
)
def test_channels_and_servers_are_made_in_one_place(made: str, where: str) -> None:
    """There they get their keepalive, and the permission of it."""
    found = {
        path.name
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
        if re.search(made, path.read_text(encoding="utf-8"))
    }
    assert found == {where}


def test_the_example_of_a_client_sets_its_keepalive() -> None:
    text = (ROOT / "examples/scheduler.py").read_text(encoding="utf-8")
    channels = re.findall(r"insecure_channel\((.*)\)", text)
    assert channels
    assert all("options=KEEPALIVE" in arguments for arguments in channels)
