"""docs/verification/guards.md lists the guards that there are, and tests that there are."""

import re

from integration.engine.test_guards import GUARDS as ON_ENGINES
from support.repository import ROOT
from unit.guards import protocol
from unit.guards.guard import guards_in
from unit.guards.test_guards import GUARDS

PAGE = ROOT / "docs" / "verification" / "guards.md"


def _rows(title: str) -> dict[str, list[str]]:
    section = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \|(.*)$", section, flags=re.MULTILINE)[2:]
    return {name: re.findall(r"`(\w+)`", tests) for name, tests in rows}


def test_the_page_lists_every_guard_with_its_scenarios() -> None:
    searched = {guard.name for guard in guards_in(protocol)}
    expected = {
        guard.name: [scenario.__name__ for scenario in guard.scenarios]
        for guard in (*GUARDS, *ON_ENGINES)
        if guard.name not in searched
    }
    assert _rows("Guards and the tests that fail without them") == expected
    assert _rows("Guards of the protocol").keys() == searched


def test_tests_that_cover_earlier_guards_exist() -> None:
    definition = re.compile(r"^ *(?:async )?(?:def |class )?(\w+)(?:\(|:| = )", flags=re.MULTILINE)
    tests = (ROOT / "tests").rglob("*.py")
    defined = {name for path in tests for name in definition.findall(path.read_text())}
    assert {name for names in _rows("Before").values() for name in names} <= defined
