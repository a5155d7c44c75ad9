"""Guards are taken out of a copy of the source one by one, and a named test fails each time.

docs/verification/guards.md lists them.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.repository import ROOT
from unit.mutations import ahead, coordinator, copies, engines, rolling, steps
from unit.mutations.mutation import Copy, Mutation, has_failed

MUTATIONS = (
    *ahead.MUTATIONS,
    *steps.MUTATIONS,
    *rolling.MUTATIONS,
    *copies.MUTATIONS,
    *coordinator.MUTATIONS,
    *engines.MUTATIONS,
)
PAGE = ROOT / "docs" / "verification" / "guards.md"
ROW = re.compile(r"^\| (?P<guard>.+?) \| (?P<how>.+?) \| (?P<tests>.+?) \|$", re.MULTILINE)


def _name(mutation: Mutation) -> str:
    return f"{Path(mutation.path).stem}: {mutation.guard}"


def _on_the_page() -> Iterator[tuple[str, set[str]]]:
    """Yield every guard that is said to be taken out here, and who is said to see it."""
    for row in ROW.finditer(PAGE.read_text(encoding="utf-8")):
        if row["how"] == "its lines":
            yield row["guard"], set(re.findall(r"`(\w+)(?:\[\w+\])?`", row["tests"]))


def _leaf(test: str) -> str:
    return re.sub(r"\[.*\]$", "", test).split("::")[-1]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=_name)
def test_the_lines_are_where_they_are_taken_out(mutation: Mutation) -> None:
    """Code moves: the table moves along."""
    assert mutation.is_in_place, f"{mutation.path} has not once:\n{mutation.lines}"
    source = (ROOT / mutation.path).read_text(encoding="utf-8")
    ast.parse(source.replace(mutation.lines, mutation.without))


@pytest.mark.parametrize("test", sorted({t for m in MUTATIONS for t in m.seen_by}))
def test_who_sees_it_exists(test: str) -> None:
    """Without its parameters, which only pytest knows."""
    path, *names = re.sub(r"\[.*\]$", "", test).split("::")
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for name in names:
        (found,) = (s for s in body if _defines(s, name))
        body = getattr(found, "body", [])


def _defines(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.Assign):  # a state machine's test case
        return any(isinstance(t, ast.Name) and t.id == name for t in statement.targets)
    return getattr(statement, "name", None) == name


def test_the_page_lists_what_is_here() -> None:
    """Every guard, with all the tests that see it."""
    here: dict[str, set[str]] = {}
    for mutation in MUTATIONS:
        here.setdefault(mutation.guard, set()).update(map(_leaf, mutation.seen_by))
    assert dict(_on_the_page()) == here


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """The whole source, in a folder of its own."""
    return Copy(tmp_path_factory.mktemp("mutations") / "source")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("mutation", "test"),
    [pytest.param(m, t, id=f"{_name(m)}: {_leaf(t)}") for m in MUTATIONS for t in m.seen_by],
)
def test_without_its_guard_it_fails(copy: Copy, mutation: Mutation, test: str) -> None:
    ended = copy.run(test, mutation)
    assert has_failed(ended), f"{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
