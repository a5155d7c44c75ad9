"""`planaria plan --plot`: pictures that say what the plan says, and one line when there is none."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from planaria.cli.main import app
from planaria_planner.cost.profile_file import format_profile
from planaria_planner.display.plotting import plot_plan
from planaria_planner.plans.instantiate import Instantiation, instantiate
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.problem import Problem
from unit.planner.profiles import equal_layers

SVG = "{http://www.w3.org/2000/svg}"


def small_plan(num_microbatches: int = 40) -> Instantiation:
    """Return a plan of a few pipelines, one node of which is slow."""
    nodes = [Node(node_id=f"n{i}", relative_speed=0.5 if i == 3 else 1.0) for i in range(7)]
    problem = Problem(
        profile=equal_layers(9, accelerators=2),
        num_microbatches=num_microbatches,
        fault_tolerance=1,
        min_nodes_per_pipeline=2,
    )
    return instantiate(problem, nodes)


def texts(path: Path) -> list[str]:
    drawing = ElementTree.parse(path)  # noqa: S314 - written by ourselves
    return ["".join(one.itertext()) for one in drawing.iter(f"{SVG}text")]


def test_the_picture_names_every_stage_and_is_the_same_each_time(tmp_path: Path) -> None:
    answer = small_plan()
    plot_plan(answer, tmp_path / "one.svg")
    plot_plan(answer, tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    written = texts(tmp_path / "one.svg")
    for pipeline in answer.plan.pipelines:
        for stage in pipeline.stages:
            layers = f"{stage.first_layer}-{stage.end_layer - 1}"
            width = f" x{stage.accelerators}" if stage.accelerators > 1 else ""
            label = layers if stage.num_layers > 1 else str(stage.first_layer)
            assert any(text.startswith(label + width) for text in written), written
    assert any(f"{answer.plan.iteration_seconds:.6g} s" in text for text in written)


def test_long_steps_are_shortened_and_say_so(tmp_path: Path) -> None:
    plot_plan(small_plan(4000), tmp_path / "plan.svg")
    assert any("shortened to 24 microbatches" in text for text in texts(tmp_path / "plan.svg"))
    assert (tmp_path / "plan.svg").stat().st_size < 300_000


def test_a_png_is_one(tmp_path: Path) -> None:
    plot_plan(small_plan(), tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def planaria_plan(tmp_path: Path, plot: str) -> tuple[int, str]:
    profile = tmp_path / "p.json"
    profile.write_text(format_profile(equal_layers(6)))
    arguments = ["plan", "--profile", str(profile), "--nodes", "4", "--microbatches", "8"]
    result = CliRunner().invoke(app, [*arguments, "--plot", str(tmp_path / plot)])
    return result.exit_code, result.stderr


def test_the_command_writes_it(tmp_path: Path) -> None:
    assert planaria_plan(tmp_path, "plan.svg") == (0, "")
    assert (tmp_path / "plan.svg").exists()


def test_another_format_is_refused(tmp_path: Path) -> None:
    status, message = planaria_plan(tmp_path, "plan.pdf")
    assert status == 2
    assert message.startswith("error: --plot: ")
    assert "neither .svg nor .png" in message


def test_a_missing_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    status, message = planaria_plan(tmp_path, "nowhere/plan.svg")
    assert status == 2
    assert message.endswith("plan.svg: No such file or directory\n")


def test_without_matplotlib_the_error_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "planaria_planner.display.plotting", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, message = planaria_plan(tmp_path, "plan.svg")
    assert status == 2
    assert message == ("error: --plot: matplotlib is not installed: pip install 'planaria[plot]'\n")
