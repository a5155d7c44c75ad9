"""The documentation says what is so."""

import ast
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml
from typer.testing import CliRunner

from planaria.cli.main import app
from planaria.job_file import load_job_file, parse_job
from planaria_common.errors import ERRORS, ErrorReason
from planaria_worker.engine import failpoints
from support.repository import ROOT

README = ROOT / "README.md"
PARTS = [ROOT / part / "README.md" for part in ("sdk", "worker", "web", "deploy")]
PARTS += [ROOT / "services" / name / "README.md" for name in ("planner", "coordinator")]
OUTSIDE = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PARTS]
PAGES = [*OUTSIDE, *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
HERE_DOCUMENT = re.compile(r"<<'END'\n(.*?)^END$", flags=re.MULTILINE | re.DOTALL)


def _blocks(language: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for found, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if found == language:
                yield page, text


def _job_files() -> list[tuple[str, str]]:
    written = [(page, text) for page, text in _blocks("yaml") if text.startswith("name: ")]
    typed = [(p, found) for p, text in _blocks("bash") for found in HERE_DOCUMENT.findall(text)]
    return [(page.name, text) for page, text in [*written, *typed]]


def _command_lines(program: str) -> list[str]:
    """Every call of `program` in a shell block, without comments and redirections."""
    lines = []
    for _, text in _blocks("bash"):
        for line in text.replace("\\\n", " ").splitlines():
            words = re.split(r"\s+[#&>|]|\s&&\s", f"{line} #")
            lines += [w.strip() for w in words if w.strip().startswith(f"{program} ")]
    return sorted(set(lines))


def test_the_readme_can_be_read_in_one_go() -> None:
    """At most 150 lines."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_the_tree_in_the_readme_is_the_repository() -> None:
    """Each path exists, and each folder of the repository is in it."""
    (tree,) = (t for page, t in _blocks("text") if page == README and "protos/" in t)
    named = [line.split()[0] for line in tree.splitlines() if re.match(r"[a-z]", line)]
    assert [path for path in named if not (ROOT / path).is_dir()] == []
    hidden = {"site", "dist", "build", "runs"}
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith(".")}
    assert folders - hidden - {path.split("/")[0] for path in named} == set()


@pytest.mark.parametrize("page", PARTS, ids=lambda p: p.parent.name)
def test_the_readme_of_a_part_is_short(page: Path) -> None:
    """Purpose, how to run it alone, settings, where to start reading: at most 60 lines."""
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.parametrize("page", PARTS, ids=lambda p: p.parent.name)
def test_files_named_by_the_readme_of_a_part_exist(page: Path) -> None:
    """Files move; the table that leads to them moves along."""
    table = page.read_text(encoding="utf-8").partition("## Where to start reading")[2]
    cells = re.findall(r"^\| (`[^|]*) \|", table, flags=re.MULTILINE)
    packages = [folder for folder in page.parent.iterdir() if (folder / "__init__.py").is_file()]
    for name in (name for cell in cells for name in re.findall(r"`([\w/.-]+)`", cell)):
        assert any((folder / name).exists() for folder in (page.parent, *packages)), name


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_links_lead_somewhere(page: Path) -> None:
    """Pages outside docs/, which mkdocs does not check."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_generated_part_of_the_reference_is_up_to_date() -> None:
    """Nobody edited it by hand, or forgot `make docs`."""
    script = [sys.executable, str(ROOT / "scripts" / "generate_reference.py"), "--check"]
    result = subprocess.run(script, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr


def test_files_named_in_the_documentation_exist() -> None:
    """A reader who looks for a file finds it."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True)
    files = [f"/{name}" for name in listed.stdout.decode().splitlines()]
    for page in (p for p in PAGES if p not in PARTS and p.name != "own-model.md"):
        for name in re.findall(r"`([\w/.]+\.(?:py|proto))`", page.read_text(encoding="utf-8")):
            assert any(file.endswith(f"/{name}") for file in files), f"{page.name}: {name}"


def test_python_in_the_documentation_imports_what_exists() -> None:
    """Each snippet compiles, and its imports succeed."""
    snippets = list(_blocks("python"))
    assert snippets
    for page, text in snippets:
        tree = ast.parse(text, filename=page.name)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                assert [a.name for a in node.names if not hasattr(module, a.name)] == []


@pytest.mark.parametrize(("page", "text"), _job_files())
def test_job_files_in_the_documentation_are_valid(page: str, text: str) -> None:
    """A reader may copy them."""
    parse_job(yaml.safe_load(text), source=page)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_job_files_among_the_examples_are_valid(path: Path) -> None:
    """Each one can be submitted as it is, and finds its data."""
    job = load_job_file(path)
    assert list(Path("/").glob(job.data.path.lstrip("/"))), job.data.path


@pytest.mark.parametrize("line", _command_lines("planaria"))
def test_commands_in_the_documentation_exist(line: str) -> None:
    """Each subcommand has the options it is shown with."""
    words = shlex.split(line)[1:]
    subcommand = [words[0]]
    if words[0] in {"jobs", "nodes"}:
        subcommand.append(words[1])
    result = CliRunner().invoke(app, [*subcommand, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for option in (w.partition("=")[0] for w in words if w.startswith("--")):
        assert option in result.output, f"{' '.join(subcommand)} has no {option}"


def test_make_targets_in_the_documentation_exist() -> None:
    """`make X` works for every X that is written down."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for words in re.findall(r"(?:^|`) *make ((?:[a-z-]+ ?)+)", text, flags=re.MULTILINE):
            assert set(words.split()) <= targets, f"{page.name}: make {words}"


def test_every_target_is_explained_by_make_help() -> None:
    """The targets that people are told about have a sentence in `make help`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    explained = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
    promised = "help install proto format lint typecheck test test-all web up down demo docs check"
    assert set(promised.split()) <= explained


def test_every_failpoint_is_documented_and_no_other() -> None:
    """A test's author finds each place, and none that does nothing."""
    page = (ROOT / "docs" / "reference" / "failpoints.md").read_text(encoding="utf-8")
    table = page.partition("| place | hit |")[2].partition("## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", table, flags=re.MULTILINE)
    written = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    (places,) = (set(a) for v in vars(failpoints).values() if "forward" in (a := get_args(v)))
    assert written == places


def _errors_page() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r'^\| <a id="(\w+)"></a>`(\w+)` \| (.*) \|$', text, flags=re.MULTILINE)
    assert [anchor for anchor, reason, _ in rows if anchor != reason.lower()] == []
    return {reason: [cell.strip() for cell in cells.split(" | ")] for _, reason, cells in rows}


def test_every_reason_is_documented_and_no_other() -> None:
    """Whoever meets a reason can look it up."""
    assert set(_errors_page()) == {reason.value for reason in ErrorReason}


@pytest.mark.parametrize("reason", list(ErrorReason))
def test_a_reason_has_its_title_a_cause_a_cure_and_its_codes(reason: ErrorReason) -> None:
    """The page and the one table agree."""
    entry = ERRORS[reason]
    title, cause, cure, grpc_code, http_status = _errors_page()[reason.value]
    codes = (f"`{entry.grpc_code}`", str(entry.http_status))
    assert (title, grpc_code, http_status) == (entry.title, *codes)
    assert cause
    assert cure
