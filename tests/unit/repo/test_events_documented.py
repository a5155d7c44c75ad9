"""Every event that the coordinator can tell is in docs/reference/events.md, and no other."""

import ast
import re

from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.job.job import JobState
from support.repository import PACKAGES, ROOT

EMITTERS = {"emit", "draft", "tell"}
SOURCES = sorted(PACKAGES["planaria_coordinator"].rglob("*.py"))


def _documented() -> set[str]:
    page = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def _told() -> set[str]:
    """The literal types of all calls that tell an event."""
    calls = (
        node
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
    )
    return {
        constant.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in EMITTERS
        for constant in ast.walk(call.args[0])
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
        if re.fullmatch(r"[a-z]+(_[a-z]+)+", constant.value)
    }


def test_every_event_is_documented() -> None:
    """Whoever writes a program that watches events can look their types up."""
    assert {"node_lost", "plan_chosen", "scheduler_overruled"} <= _told()
    assert _told() - _documented() == set()


def test_no_event_is_documented_that_is_never_recorded() -> None:
    """Each type is written in the coordinator, or follows from a state."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    literal = {name for name in _documented() if f'"{name}"' in source}
    derived = {f"job_{state.lower()}" for state in JobState}
    derived |= {f"node_{state.lower()}" for state in NodeState}
    assert _documented() - literal - derived == set()
