"""One concept has one name: private words stay out of code, protocol and documentation."""

import re
import subprocess
from pathlib import Path

import pytest

from support.repository import ROOT

BANNED = {
    r"peer[ _-]?watch": "failure detector",
    r"\blone[ _-]layers?\b|\bLoneLayer": "single layer",
    r"\btellers?\b": "reporter",
    r"\bSurroundings\b": "EngineResources or ActorDependencies",
    r"\bstanding of nodes\b": "node updates",
    r"\b(?:takes?|taken|taking|took)[ _]up\b": "restore, use or continue",
    r"\b(?:stands?|stood|standing)[ _]still\b": "stop, or be parked",
    r"\bbehind (?:a|the|that|this|every|each|its) (?:commit|step|switch|round|pass)\b": "after",
    r"\bset[ _]aside\b": "retain",
    r"\bone too many\b": "say what was exceeded",
    r"\b(?:make|makes|made|making) anew\b": "rebuild",
    r"\bvoid[ _]attempts?\b|\bVoidAttempt": "aborted attempt",
    r"\bwounded\b": "broken (of a pipeline)",
    r"\bwhole[ _](?:pipelines?|sums?)\b": "healthy pipeline, complete sum",
    r"\bdefault mode\b": "fast mode",
    r"\b(?:beside|besides) training\b": "while training continues, online",
    r"\brun[ _]ahead\b": "begin the next round early",
    r"\bwishes\b": "user requests",
    r"\banew\b": "again",
    r"\bbeside\b": "next to, while, in addition to",
    r"\bverdicts?\b": "decision",
    r"\bsum[ _]groups?\b|\bSumGroup": "data-parallel group",
}
"""What not to write, and what to write instead; docs/reference/glossary.md has the terms."""

FILES = ("*.py", "*.proto", "*.md", "*.ts", "*.tsx", "*.yaml", "*.yml", "*.html")
NOT_OURS = ("sdk/planaria/api/", "web/src/services/schema.d.ts", "tests/unit/repo/test_words.py")


def _files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", *FILES], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.splitlines() if not name.startswith(NOT_OURS)]


@pytest.mark.parametrize("pattern", BANNED)
def test_a_private_word_is_not_used(pattern: str) -> None:
    """A newcomer meets only words of the field and of the glossary."""
    word = re.compile(pattern, flags=re.IGNORECASE if pattern.islower() else 0)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in _files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in word.finditer(line)
    ]
    assert found == [], f"say: {BANNED[pattern]}"


def test_the_glossary_explains_each_term_once() -> None:
    """Each row has one line, and no term is explained twice."""
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, flags=re.MULTILINE)
    terms = [term.strip() for term, _ in rows if term.strip() not in {"term", "---"}]
    assert len(terms) > 50
    assert sorted(terms) == sorted(set(terms))
