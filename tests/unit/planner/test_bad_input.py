"""Bad profiles and impossible requests: one line that names the field and what would be right."""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_planner import cli
from planaria_planner.cli import plan
from planaria_planner.cost.profile import Layer, ModelProfile
from planaria_planner.cost.profile_file import format_profile, parse_profile
from planaria_planner.plans.instantiate import Instantiation
from planaria_planner.plans.next_best import NextBest, next_best
from planaria_planner.templates.templates import generate_templates
from unit.planner.profiles import equal_layers

GOOD: dict[str, Any] = json.loads(format_profile(equal_layers(4, accelerators=2)))

Change = Callable[[dict[str, Any]], object]

BAD_PROFILES: dict[str, tuple[Change, str, str]] = {
    "negative time": (
        lambda p: p["layers"][1]["forward_seconds"].update({"1": -1.0}),
        "layers[1].forward_seconds.1",
        "-1.0 is not zero or more",
    ),
    "missing width in one layer": (
        lambda p: p["layers"][2]["backward_seconds"].pop("2"),
        "layers[2].backward_seconds",
        "no measurement for 2 accelerator(s)",
    ),
    "missing width in every layer": (
        lambda p: [
            layer[name].pop("2")
            for layer in p["layers"]
            for name in ("forward_seconds", "backward_seconds")
        ],
        "layers[0].forward_seconds",
        "no measurement for 2 accelerator(s)",
    ),
    "width that is not a power of two": (
        lambda p: p["layers"][0]["forward_seconds"].update({"3": 1.0}),
        "layers[0].forward_seconds.3",
        "not a power of two",
    ),
    "width that is not a number": (
        lambda p: p["layers"][0]["forward_seconds"].update({"two": 1.0}),
        "layers[0].forward_seconds.two",
        "should be a valid integer",
    ),
    "width with a leading zero": (
        lambda p: p["layers"][0]["forward_seconds"].update({"01": 1.0}),
        "layers[0].forward_seconds.01",
        "'01' is not a number of accelerators",
    ),
    "width with an underscore": (
        lambda p: p["layers"][1]["backward_seconds"].update({"1_6": 1.0}),
        "layers[1].backward_seconds.1_6",
        "'1_6' is not a number of accelerators",
    ),
    "width written as a fraction only": (
        lambda p: p["layers"][0]["forward_seconds"].update(
            {"1.0": p["layers"][0]["forward_seconds"].pop("1")}
        ),
        "layers[0].forward_seconds.1.0",
        "'1.0' is not a number of accelerators",
    ),
    "no layers": (lambda p: p["layers"].clear(), "layers", "at least one layer"),
    "zero bandwidth": (
        lambda p: p["hardware"].update(inter_node_bytes_per_second=0),
        "hardware.inter_node_bytes_per_second",
        "0.0 is not positive",
    ),
    "negative latency": (
        lambda p: p["hardware"].update(link_latency_seconds=-1e-6),
        "hardware.link_latency_seconds",
        "is not zero or more",
    ),
    "no kinds of node": (
        lambda p: p["hardware"]["node_kinds"].clear(),
        "hardware.node_kinds",
        "at least one kind",
    ),
    "no accelerators": (
        lambda p: p["hardware"]["node_kinds"][0].update(accelerators_per_node=0),
        "hardware.node_kinds[0].accelerators_per_node",
        "0 is less than 1",
    ),
    "no speed": (
        lambda p: p["hardware"]["node_kinds"][0].update(relative_speed=0),
        "hardware.node_kinds[0].relative_speed",
        "0.0 is not positive",
    ),
    "a kind twice": (
        lambda p: p["hardware"]["node_kinds"].append(p["hardware"]["node_kinds"][0]),
        "hardware.node_kinds[1].name",
        "used twice",
    ),
    "bytes that are not whole": (
        lambda p: p["layers"][0].update(state_bytes=1.5),
        "layers[0].state_bytes",
        "valid integer",
    ),
    "negative bytes": (
        lambda p: p["layers"][0].update(output_bytes=-1),
        "layers[0].output_bytes",
        "-1 is less than 0",
    ),
    "bytes beyond measure": (
        lambda p: p["layers"][0].update(state_bytes=1 << 60),
        "layers[0].state_bytes",
        "is more than",
    ),
    "missing field": (lambda p: p["layers"][3].pop("name"), "layers[3].name", "field required"),
    "unknown field": (
        lambda p: p["layers"][3].update(colour="red"),
        "layers[3].colour",
        "there is no such field",
    ),
    "another version": (
        lambda p: p.update(api_version="planaria/v9"),
        "api_version",
        "'planaria/v1'",
    ),
    "no microbatch": (lambda p: p.update(microbatch_size=0), "microbatch_size", "0 is less than 1"),
    "a year per microbatch": (
        lambda p: p["layers"][0]["forward_seconds"].update({"1": 3e7}),
        "layers",
        "more than 4000 s",
    ),
    "no time at all": (
        lambda p: [
            layer[name].update({"1": 0.0, "2": 0.0})
            for layer in p["layers"]
            for name in ("forward_seconds", "backward_seconds")
        ],
        "layers",
        "every layer takes zero seconds",
    ),
}


@pytest.mark.parametrize("case", BAD_PROFILES)
def test_a_bad_profile_names_the_field(case: str) -> None:
    change, field, wrong = BAD_PROFILES[case]
    body = copy.deepcopy(GOOD)
    change(body)
    with pytest.raises(PlanariaError) as caught:
        generate_templates(parse_profile(json.dumps(body)), (4,))
    assert caught.value.reason is ErrorReason.INVALID_PROFILE
    assert caught.value.metadata == {"field": field}
    assert caught.value.message.startswith(f"{field}: ")
    assert wrong in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["", "[]", "{", '{"microbatch_size": NaN}', "null"])
def test_text_that_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(PlanariaError) as caught:
        parse_profile(text)
    assert caught.value.reason is ErrorReason.INVALID_PROFILE
    assert "\n" not in caught.value.message


def test_a_time_that_is_not_finite_is_refused() -> None:
    good = equal_layers(1)
    for seconds in (math.nan, math.inf):
        layer = good.layers[0]
        with pytest.raises(PlanariaError, match="not finite"):
            ModelProfile(
                microbatch_size=1,
                hardware=good.hardware,
                layers=(
                    Layer(
                        name="x",
                        forward_seconds={1: seconds},
                        backward_seconds=layer.backward_seconds,
                        parameter_bytes=1,
                        state_bytes=1,
                        activation_bytes=1,
                        output_bytes=1,
                    ),
                ),
            )


def test_a_profile_survives_its_file() -> None:
    profile = equal_layers(3, accelerators=4)
    assert parse_profile(format_profile(profile)) == profile


def test_the_widths_of_a_profile_are_written_in_order_whatever_holds_them() -> None:
    profile = equal_layers(1, accelerators=4)
    [layer] = profile.layers
    backwards = MappingProxyType(dict(reversed(list(layer.forward_seconds.items()))))
    shuffled = replace(profile, layers=(replace(layer, forward_seconds=backwards),))
    assert format_profile(shuffled) == format_profile(profile)


def test_a_layer_larger_than_any_stage_is_named() -> None:
    profile = equal_layers(4, memory_bytes=1000)
    with pytest.raises(PlanariaError, match="layer layer-0 needs 1100 bytes") as caught:
        generate_templates(profile, (4,))
    assert caught.value.reason is ErrorReason.MODEL_DOES_NOT_FIT
    assert caught.value.metadata == {
        "layer": "layer-0",
        "need_bytes": "1100",
        "have_bytes": "1000",
    }


def test_a_model_that_only_more_nodes_hold_says_how_many() -> None:
    profile = equal_layers(4, memory_bytes=2300)
    with pytest.raises(PlanariaError, match="not enough nodes: have 1, need 2"):
        generate_templates(profile, (1,))


def test_a_model_that_no_number_of_nodes_holds_does_not_fit() -> None:
    """Each layer fits an accelerator alone, but the minimum asks for too many at once."""
    profile = equal_layers(4, memory_bytes=2300)
    with pytest.raises(PlanariaError) as caught:
        generate_templates(profile, (9,), min_nodes=5)
    assert caught.value.reason is ErrorReason.INVALID_ARGUMENT


app = Typer()
app.command()(plan)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def profile_path(tmp_path: Path) -> Path:
    path = tmp_path / "P.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    return path


def test_the_command_prints_the_plan_as_json_and_nothing_else(profile_path: Path) -> None:
    status, out, err = run(
        *("--profile", str(profile_path), "--nodes", "3", "--fault-tolerance", "1"),
        *("--microbatches", "6", "--json"),
    )
    assert (status, err) == (0, "")
    body = json.loads(out)
    assert set(body) == {"iteration_seconds", "idle_nodes", "pipelines"}
    assert body["idle_nodes"] + sum(p["num_nodes"] for p in body["pipelines"]) == 3
    assert sum(p["num_microbatches"] for p in body["pipelines"]) == 6
    assert body["iteration_seconds"] == max(p["iteration_seconds"] for p in body["pipelines"])
    for pipeline in body["pipelines"]:
        assert sum(stage["num_layers"] for stage in pipeline["stages"]) == 4
        assert set(pipeline["stages"][0]) == {"first_layer", "num_layers", "node", "accelerators"}


def test_the_command_draws_the_plan_and_explains_it(profile_path: Path) -> None:
    status, out, _ = run(
        *("--profile", str(profile_path), "--nodes", "node=3", "--microbatches", "6"), "--explain"
    )
    assert status == 0
    assert "PIPELINES" in out
    assert "one step takes" in out
    assert "is the slowest, bound by stage" in out


def test_the_next_best_plan_is_searched_for_only_on_request(
    profile_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[Instantiation] = []

    def counting(answer: Instantiation) -> NextBest:
        searches.append(answer)
        return next_best(answer)

    monkeypatch.setattr(cli, "next_best", counting)
    asked = ["--profile", str(profile_path), "--nodes", "3", "--microbatches", "6", "--json"]
    assert "next_best" not in json.loads(run(*asked)[1])
    assert searches == []
    body = json.loads(run(*asked, "--explain")[1])
    assert body["next_best"]["iteration_seconds"] >= body["iteration_seconds"]
    assert len(searches) == 1


BAD_COMMANDS: dict[str, tuple[list[str], int, str]] = {
    "no nodes": (["--nodes", "0"], 2, "has no nodes"),
    "nodes that are no number": (["--nodes", "many"], 2, "'many' is not N or KIND=N,KIND=N"),
    "an unknown kind": (["--nodes", "tpu=4"], 2, "the profile has no kind 'tpu'; it has node"),
    "a kind twice": (["--nodes", "2,node=2"], 2, "is not N or KIND=N"),
    "negative f": (["--fault-tolerance", "-1"], 2, "fault_tolerance: -1 is out of range"),
    "no microbatches": (["--microbatches", "0"], 2, "num_microbatches: 0 is out of range"),
    "f beyond the nodes": (
        ["--fault-tolerance", "4"],
        1,
        "resilience.fault_tolerance: 4 needs 5 pipelines on 5 nodes, have 3:"
        " add nodes or lower it to 2",
    ),
    "a missing file": (["--profile", "/nowhere/P.json"], 2, "No such file"),
    "too many nodes": (["--nodes", "999999"], 2, "more than 20000"),
}


@pytest.mark.parametrize("case", BAD_COMMANDS)
def test_a_bad_command_is_one_line_and_an_exit_status(profile_path: Path, case: str) -> None:
    options, expected, message = BAD_COMMANDS[case]
    given = {"--profile": str(profile_path), "--nodes": "3", "--microbatches": "6"}
    given.update(zip(options[::2], options[1::2], strict=True))
    status, out, err = run(*(part for pair in given.items() for part in pair))
    assert status == expected
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
