"""The plan changes behind a commit: nobody stands still for it, and the model never learns of it.

A job of more steps than the other tests have. One engine is held at a step until the test has said
what is to happen behind that step.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from oracle.reference import ReferenceResult
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import DigestLayers, Quiesce, Switch
from planaria.api.worker.v1.report_pb2 import FenceReport
from support.engine_harness import EngineCluster, Pipeline
from support.engine_zygote import Zygote
from support.handover import Handover
from support.training_jobs import TrainingJob, training_job

pytestmark = pytest.mark.integration

NUM_STEPS = 9
STEP = 4
"""Behind this step the plan changes, unless a test says otherwise."""
PAIR = [("a", 3), ("b", 4)]
OTHER_PAIR = [("c", 5), ("d", 2)]
BOTH = [Pipeline(PAIR, [0, 1, 2]), Pipeline(OTHER_PAIR, [3, 4, 5])]
WITH_E = [
    Pipeline(PAIR, [0, 1], keeps=True),
    Pipeline(OTHER_PAIR, [2, 3], keeps=True),
    Pipeline([("e", 7)], [4, 5]),
]
WITHOUT_D = [Pipeline(PAIR, [0, 1, 2], keeps=True), Pipeline([("c", 7)], [3, 4, 5])]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    return training_job(tmp_path_factory.mktemp("job"), num_steps=NUM_STEPS)


@pytest.fixture(scope="module")
def expected(job: TrainingJob) -> ReferenceResult:
    return job.run_reference()


@pytest.fixture(scope="module")
def shared(
    job: TrainingJob, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineCluster]:
    with EngineCluster(tmp_path_factory.mktemp("engines"), job.files, zygote) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: EngineCluster) -> Iterator[EngineCluster]:
    """What an engine was armed with must not meet the next test."""
    yield shared
    for engine in shared.engines.values():
        engine.close()


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The file whose creation lets the held engine begin step STEP."""
    return tmp_path / "go"


def held(path: Path, step: int = STEP) -> dict[str, object]:
    """Keeps an engine from beginning a step."""
    return {"at": "forward", "action": "hold", "step": step, "until": str(path)}


def begin(
    cluster: EngineCluster,
    go: Path,
    before: Sequence[Pipeline] = BOTH,
    joining: str = "",
    failpoints: Mapping[str, Sequence[Mapping[str, object]]] | None = None,
) -> None:
    """Trains up to STEP, where a waits."""
    names = [name for pipeline in before for name, _ in pipeline.stages]
    armed = {name: list(points) for name, points in (failpoints or {}).items()}
    armed.setdefault("a", []).append(held(go))
    cluster.prepare(*names, *joining, failpoints=armed)
    cluster.train(before)


def finish(cluster: EngineCluster, expected: ReferenceResult, plan: Sequence[Pipeline]) -> None:
    """The job ends as if nothing had happened."""
    cluster.wait_until_finished(*(name for pipeline in plan for name, _ in pipeline.stages))
    assert cluster.digest(plan) == expected.digest
    assert cluster.losses() == expected.losses


def kept(reports: Mapping[str, FenceReport]) -> dict[str, list[int]]:
    return {name: list(report.kept_microbatches) for name, report in reports.items()}


def test_a_node_joins_while_the_others_train(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """However long its layers take, steps are committed meanwhile."""
    copy = tmp_path / "copy"
    slow = {"at": "follow", "action": "hold", "until": str(copy)}
    begin(cluster, go, joining="e", failpoints={"e": [slow]})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.begin_staging()
    cluster.wait_for_step("d", STEP - 1)
    assert not handover.has_answered("e")
    copy.touch()
    staged = handover.wait_until_staged()
    assert (staged["e"].bytes > 0, staged["a"].bytes) == (True, 0)
    handover.switch_behind(STEP, go)
    handover.wait_until_switched()
    assert cluster.committed_steps == STEP + 1
    finish(cluster, expected, WITH_E)
    assert not handover.has_parked(*"abcd")


def test_a_node_leaves_and_another_takes_over_its_layers(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """c, which trains, follows what only d has of its pipeline; then it trains all layers."""
    begin(cluster, go)
    handover = Handover(cluster, BOTH, WITHOUT_D)
    staged = handover.stage()
    assert staged["c"].bytes > 0
    handover.switch_behind(STEP, go)
    _, left = handover.wait_until_switched()
    assert left["d"].committed_steps == STEP + 1
    assert left["d"].last_commit.next_generation == handover.generation
    assert left["d"].applied_generation == 0
    finish(cluster, expected, WITHOUT_D)
    assert not handover.has_parked(*"abc")


@pytest.mark.slow
def test_plans_change_one_behind_the_other(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """A join, and behind the next commit a drain; old groups last as long as they are needed."""
    later = tmp_path / "later"
    begin(cluster, go, joining="e", failpoints={"a": [held(later, STEP + 1)]})
    first = Handover(cluster, BOTH, WITH_E)
    first.stage()
    first.switch_behind(STEP, go)
    first.wait_until_switched()
    after = [Pipeline(PAIR, [0, 1, 2], keeps=True), Pipeline([("e", 7)], [3, 4, 5], keeps=True)]
    second = Handover(cluster, WITH_E, after)
    second.stage()
    second.switch_behind(STEP + 1, later)
    _, left = second.wait_until_switched()
    assert left.keys() == {"c", "d"}
    assert cluster.committed_steps == STEP + 2
    finish(cluster, expected, after)
    assert not first.has_parked(*"ab")
    assert not second.has_parked(*"abe")


def test_a_lost_pipeline_is_regrown_without_a_second_stop(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """c and d finish the step in which b died; a, now a follower, becomes a whole pipeline."""
    fatal = {"at": "backward", "action": "kill", "step": 1, "microbatch": 1}
    cluster.prepare(*"abcd", failpoints={"b": [fatal], "c": [held(go)]})
    cluster.train(BOTH)
    cluster.wait_until_dead("b")
    cluster.fence(["b"])
    cluster.committed_steps = 1
    finishing = [Pipeline(OTHER_PAIR, range(6), in_flight=[3, 4, 5, 0, 1, 2])]
    for name, result in cluster.activate(finishing, followers={"a": range(3)}).items():
        assert result.HasField("activated"), (name, result)
    regrown = [Pipeline([("a", 7)], [0, 1]), Pipeline(OTHER_PAIR, [2, 3, 4, 5], keeps=True)]
    handover = Handover(cluster, finishing, regrown, followers={"a": range(3)})
    handover.stage()
    handover.switch_behind(STEP, go)
    handover.wait_until_switched()
    finish(cluster, expected, regrown)
    assert not handover.has_parked(*"cd")


@pytest.mark.slow
def test_a_joiner_needs_no_switch_of_its_own(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """It takes its place behind the commit that it follows, and answers when it is asked."""
    begin(cluster, go, joining="e")
    handover = Handover(cluster, BOTH, WITH_E)
    handover.stage()
    handover.switch_behind(STEP, go, but="e")
    finish(cluster, expected, WITH_E)
    activated = cluster.ask("e", handover.generation, switch=Switch()).activated
    assert activated.committed_steps == STEP + 1


@pytest.mark.slow
def test_behind_the_last_step_nobody_takes_another_place(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    cluster.prepare(*"abcde", failpoints={"a": [held(go, NUM_STEPS - 1)]})
    cluster.train(BOTH)
    handover = Handover(cluster, BOTH, WITH_E)
    handover.stage()
    handover.switch_behind(NUM_STEPS - 1, go)
    finish(cluster, expected, BOTH)
    reports = cluster.quiesce()
    assert not reports["e"].layers
    result = handover.switching_result("a")
    assert result.failure.reason == ErrorReason.ERROR_REASON_STALE_GENERATION


@pytest.mark.slow
def test_without_a_switch_nothing_happens(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """What is staged is dropped by the next generation, and those who wait for it are told."""
    begin(cluster, go, joining="e")
    handover = Handover(cluster, BOTH, WITH_E)
    handover.stage()
    again = Handover(cluster, BOTH, WITHOUT_D)
    again.stage()
    late = cluster.ask("a", handover.generation, switch=Switch())
    assert late.failure.reason == ErrorReason.ERROR_REASON_STALE_GENERATION
    early = cluster.ask("e", again.generation, switch=Switch())
    assert early.failure.reason == ErrorReason.ERROR_REASON_WRONG_STATE
    go.touch()
    finish(cluster, expected, BOTH)
    assert not handover.has_parked(*"abcd")


@pytest.mark.slow
@pytest.mark.parametrize("lack", ["other stages", "no pipeline", "layers"])
def test_an_engine_refuses_a_place_that_it_cannot_stage(
    cluster: EngineCluster, go: Path, lack: str
) -> None:
    begin(cluster, go, joining="e")
    after = {
        "other stages": [Pipeline([("a", 4), ("b", 3)], range(6), keeps=True)],
        "no pipeline": [Pipeline([("e", 7)], range(6), keeps=True)],
        "layers": [Pipeline([("a", 7)], range(6))],
    }[lack]
    handover = Handover(cluster, BOTH, after)
    name = after[0].stages[0][0]
    command = handover.activation(name)
    if lack == "layers":
        del command.layers[-1]
    result = cluster.ask(name, handover.generation, activate=command)
    assert result.failure.reason == ErrorReason.ERROR_REASON_WRONG_STATE
    assert result.failure.metadata["field"] == ("layers" if lack == "layers" else "keeps_step")
    go.touch()
    cluster.wait_until_finished(*"abcd")


@pytest.mark.slow
def test_replicas_are_equal_in_the_default_mode_too(tmp_path: Path, zygote: Zygote) -> None:
    """Who joins applies the very sums of those it follows; what they are depends on the plan."""
    job = training_job(tmp_path / "job", num_steps=NUM_STEPS, reproducible=False)
    go = tmp_path / "go"
    with EngineCluster(tmp_path / "engines", job.files, zygote) as cluster:
        begin(cluster, go, joining="e")
        handover = Handover(cluster, BOTH, WITH_E)
        handover.begin_staging()  # while steps are committed
        handover.wait_until_staged()
        handover.switch_behind(STEP, go)
        handover.wait_until_switched()
        cluster.wait_until_finished(*"abcde")
        cluster.digest(WITH_E)  # all replicas have the same, or it fails


def test_a_joiner_that_falls_behind_begins_its_layers_again(
    job: TrainingJob, expected: ReferenceResult, zygote: Zygote, tmp_path: Path
) -> None:
    """Its sources keep no sum for it: whatever is committed, they send the layer as it is then."""
    go, serve = tmp_path / "go", tmp_path / "serve"
    slow = {"at": "serve_follow", "action": "hold", "until": str(serve)}
    with EngineCluster(
        tmp_path / "engines", job.files, zygote, mutant="impatient_source"
    ) as cluster:
        begin(cluster, go, joining="e", failpoints={"a": [slow], "b": [slow], "e": []})
        handover = Handover(cluster, BOTH, WITH_E)
        handover.begin_staging()
        cluster.wait_for_step("d", STEP - 1)
        serve.touch()
        handover.wait_until_staged()
        handover.switch_behind(STEP, go)
        handover.wait_until_switched()
        finish(cluster, expected, WITH_E)
        assert "follower_fell_behind" in cluster.engines["a"].log()


# --- failures


def test_a_joiner_that_dies_in_staging_costs_nothing(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    begin(cluster, go, joining="e", failpoints={"e": [{"at": "follow", "action": "kill"}]})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.begin_staging()
    cluster.wait_until_dead("e")
    again = Handover(cluster, BOTH, WITHOUT_D)
    again.stage()
    reason = handover.staging_result("a").failure.reason
    assert reason == ErrorReason.ERROR_REASON_STALE_GENERATION
    again.switch_behind(STEP, go)
    again.wait_until_switched()
    finish(cluster, expected, WITHOUT_D)
    assert not handover.has_parked(*"abc")


@pytest.mark.slow
def test_a_source_that_dies_while_it_is_followed_is_a_loss_like_any(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """What was staged is dropped; the whole pipeline finishes the step."""
    fatal = {"at": "serve_follow", "action": "kill", "step": STEP + 1}
    begin(cluster, go, joining="e", failpoints={"c": [fatal], "e": []})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.prefer("c")
    handover.stage()
    go.touch()
    cluster.wait_until_dead("c")
    reports = cluster.fence(["c"])
    held_layers = cluster.roll_forward(reports)
    assert not held_layers["e"]
    after = [Pipeline(PAIR, range(6))]
    cluster.recover(after)
    finish(cluster, expected, after)


@pytest.mark.parametrize(
    ("place", "victim"),
    [
        ("after_exchange", "b"),
        *(
            pytest.param(place, victim, marks=pytest.mark.slow)
            for place in ("before_exchange", "after_exchange", "switch")
            for victim in ("b", "d")
            if (place, victim) != ("after_exchange", "b")
        ),
    ],
)
def test_an_engine_that_dies_around_the_commit_leaves_one_plan_or_the_other(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, place: str, victim: str
) -> None:
    """Whoever passed it bears witness to the next plan; the others are told, and stand still."""
    fatal = {"at": place, "action": "kill", "step": STEP}
    begin(cluster, go, joining="e", failpoints={victim: [fatal]})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.stage()
    handover.switch_behind(STEP, go)
    cluster.wait_until_dead(victim)
    reports = cluster.fence([victim])
    if place == "before_exchange":
        assert {r.committed_steps for n, r in reports.items() if n != "e"} == {STEP}
        assert not reports["e"].layers
    for report in reports.values():
        if report.committed_steps == STEP + 1:
            assert report.last_commit.next_generation == handover.generation
    cluster.roll_forward(reports)
    survivors = [n for n in "abcde" if n != victim]
    plan = [Pipeline([("e", 7)], range(3)), Pipeline([("c", 7)], range(3, 6))]
    if place == "before_exchange":
        plan = [Pipeline([("a", 7)], range(3)), Pipeline([("c", 7)], range(3, 6))]
    assert set(reports) == set(survivors)
    cluster.recover(plan)
    finish(cluster, expected, plan)


def test_a_joiner_that_dies_behind_the_commit_leaves_promises_of_the_next_plan(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """The unchanged pipelines are whole, in the new generation, with its microbatches."""
    fatal = {"at": "switch", "action": "kill"}
    begin(cluster, go, joining="e", failpoints={"e": [fatal]})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.stage()
    handover.switch_behind(STEP, go)
    for name in "abcd":
        assert handover.switching_result(name).HasField("activated")
    cluster.wait_until_dead("e")
    reports = cluster.fence(["e"])
    assert kept(reports) == {"a": [0, 1], "b": [0, 1], "c": [2, 3], "d": [2, 3]}
    assert {r.applied_generation for r in reports.values()} == {handover.generation}
    assert {r.committed_steps for r in reports.values()} == {STEP + 1}
    cluster.committed_steps = STEP + 1
    keeping = [
        Pipeline(PAIR, [0, 1, 2], in_flight=[0, 1, 4]),
        Pipeline(OTHER_PAIR, [3, 4, 5], in_flight=[2, 3, 5]),
    ]
    for name, result in cluster.activate(keeping).items():
        assert result.HasField("activated"), (name, result)
    finish(cluster, expected, keeping)


def test_a_fence_between_the_commit_and_the_new_place_finds_no_promise(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """c is about to take another place; its report is that of the commit, and it stays without."""
    place = tmp_path / "place"
    waiting = {"at": "switch", "action": "hold", "until": str(place)}
    begin(cluster, go, failpoints={"c": [waiting]})
    handover = Handover(cluster, BOTH, WITHOUT_D)
    handover.stage()
    handover.switch_behind(STEP, go)
    for name in ("a", "b", "d"):
        handover.switching_result(name)
    reports = fence_while_held(cluster, place, ("a", "b", "c", "d"))
    assert {report.committed_steps for report in reports.values()} == {STEP + 1}
    assert kept(reports) == {"a": [0, 1, 2], "b": [0, 1, 2], "c": [], "d": []}
    assert reports["c"].applied_generation == 0
    assert [layer.layer for layer in reports["c"].layers] == list(range(5))
    assert handover.switching_result("c").HasField("failure")
    plan = [Pipeline(PAIR, range(3)), Pipeline(OTHER_PAIR, range(3, 6))]
    cluster.recover(plan)
    finish(cluster, expected, plan)


def test_a_straggler_is_told_and_stands_still(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """b has passed the exchange and told a nothing yet: a promised for the plan before."""
    verdict = tmp_path / "verdict"
    waiting = {"at": "after_exchange", "action": "hold", "step": STEP, "until": str(verdict)}
    begin(cluster, go, joining="e", failpoints={"b": [waiting]})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.stage()
    handover.switch_behind(STEP, go)
    handover.switching_result("d")
    reports = fence_while_held(cluster, verdict, ("a", "b", "c", "d", "e"))
    assert reports["a"].committed_steps == STEP
    assert reports["a"].applied_generation < handover.generation
    assert reports["d"].committed_steps == STEP + 1
    cluster.roll_forward(reports)
    reports = cluster.fence()
    assert kept(reports)["a"] == []
    assert reports["a"].applied_generation == 0
    assert {reports[name].committed_steps for name in "abcd"} == {STEP + 1}
    plan = [Pipeline([("a", 7)], range(3)), Pipeline(OTHER_PAIR, range(3, 6))]
    cluster.recover(plan)
    finish(cluster, expected, plan)


def test_a_fence_during_the_update_finds_no_promise_of_the_next_plan(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """b has passed the commit, and is fenced before it could go on behind it."""
    update = tmp_path / "update"
    waiting = {"at": "before_update", "action": "hold", "step": STEP, "until": str(update)}
    begin(cluster, go, joining="e", failpoints={"b": [waiting], "e": []})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.stage()
    handover.switch_behind(STEP, go)
    for name in "acd":
        assert handover.switching_result(name).HasField("activated")
    reports = fence_while_held(cluster, update, ("a", "b", "c", "d"))
    assert kept(reports) == {"a": [0, 1], "b": [], "c": [2, 3], "d": [2, 3]}
    assert reports["b"].last_commit.next_generation == handover.generation
    assert reports["b"].applied_generation == 0
    cluster.recover(BOTH)
    finish(cluster, expected, BOTH)


def test_an_engine_of_the_exchange_takes_no_place_by_hearsay(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """c hears of the commit from b, whose layers it follows; in its own pipeline d dies before c
    has the verdict. Its own layers lack the step."""
    never = tmp_path / "never"
    silent = {"at": "after_exchange", "action": "hold", "step": STEP, "until": str(never)}
    begin(cluster, go, failpoints={"d": [silent]})
    handover = Handover(cluster, BOTH, WITHOUT_D)
    handover.prefer("b")
    handover.stage()
    handover.switch_behind(STEP, go)
    for name in "ab":
        assert handover.switching_result(name).HasField("activated")
    cluster.engines["d"].kill()
    cluster.wait_until_dead("d")
    cluster.wait_for_fault("c")
    cluster.ask("c", digest_layers=DigestLayers())  # time to do what it must not
    reports = cluster.fence(["d"])
    assert reports["c"].committed_steps == STEP
    assert reports["c"].applied_generation == 0
    cluster.roll_forward(reports)
    plan = [Pipeline(PAIR, range(3)), Pipeline([("c", 7)], range(3, 6))]
    cluster.recover(plan)
    finish(cluster, expected, plan)


def test_layers_of_the_place_before_last_until_the_first_commit(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """Whoever takes them over may not have them yet: until then they are replicas like any."""
    later = tmp_path / "later"
    begin(cluster, go, failpoints={"c": [held(later, STEP + 1)]})
    shifted = [
        Pipeline([("a", 2), ("b", 5)], [0, 1, 2]),
        Pipeline(OTHER_PAIR, [3, 4, 5], keeps=True),
    ]
    handover = Handover(cluster, BOTH, shifted)
    handover.stage()
    handover.switch_behind(STEP, go)
    handover.wait_until_switched()
    reports = cluster.fence()
    assert {x.layer: x.version for x in reports["a"].layers} == dict.fromkeys(range(3), STEP + 1)
    keeping = [Pipeline(p.stages, p.microbatches, in_flight=p.microbatches) for p in shifted]
    cluster.committed_steps = STEP + 1
    for name, result in cluster.activate(keeping).items():
        assert result.HasField("activated"), (name, result)
    later.touch()
    finish(cluster, expected, keeping)
    reports = cluster.quiesce(["a"])
    assert [x.layer for x in reports["a"].layers] == [0, 1]


@pytest.mark.slow
def test_layers_that_do_not_come_behind_the_commit_are_a_fault(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """c has the commit, and its source does not send it the sums: it does not wait for ever."""
    never = tmp_path / "never"
    silent = {"at": "serve_follow", "action": "hold", "step": STEP + 1, "until": str(never)}
    begin(cluster, go, failpoints={"b": [silent]})
    handover = Handover(cluster, BOTH, WITHOUT_D, rebuild_seconds=1)
    handover.prefer("b")
    handover.stage()
    handover.switch_behind(STEP, go)
    fault = cluster.wait_for_fault("c")
    assert fault.failure.reason == ErrorReason.ERROR_REASON_UNAVAILABLE
    assert fault.generation == handover.generation
    assert fault.failure.metadata["layers"] == "5, 6"
    refused = handover.switching_result("c").failure
    assert refused.reason == ErrorReason.ERROR_REASON_UNAVAILABLE
    cluster.recover(BOTH)
    finish(cluster, expected, BOTH)


def test_an_engine_that_cannot_stage_says_so_and_trains_on(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """Neither one that fails, nor one that is not ready, is switched."""
    stage = tmp_path / "stage"
    begin(
        cluster,
        go,
        joining="e",
        failpoints={
            "a": [{"at": "stage", "action": "raise"}],
            "b": [{"at": "stage", "action": "hold", "until": str(stage)}],
        },
    )
    handover = Handover(cluster, BOTH, WITH_E)
    handover.begin_staging()
    failed = handover.staging_result("a").failure
    assert failed.reason == ErrorReason.ERROR_REASON_ENGINE_FAILED
    for name in "ab":
        early = cluster.ask(name, handover.generation, switch=Switch())
        assert early.failure.reason == ErrorReason.ERROR_REASON_WRONG_STATE
    stage.touch()
    go.touch()
    finish(cluster, expected, BOTH)
    assert not handover.has_parked(*"abcd")


@pytest.mark.slow
def test_an_engine_that_dies_in_staging_is_a_loss_like_any(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """The others drop what they have staged, and finish the step."""
    begin(cluster, go, joining="e", failpoints={"b": [{"at": "stage", "action": "kill"}]})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.begin_staging()
    cluster.wait_until_dead("b")
    reports = cluster.fence(["b"])
    assert kept(reports) == {"a": [], "c": [3, 4, 5], "d": [3, 4, 5], "e": []}
    for name in "acde":
        reason = handover.staging_result(name).failure.reason
        assert reason == ErrorReason.ERROR_REASON_STALE_GENERATION
    after = [Pipeline(OTHER_PAIR, range(3)), Pipeline([("e", 7)], range(3, 6))]
    go.touch()
    cluster.recover(after)
    finish(cluster, expected, after)


def fence_while_held(
    cluster: EngineCluster, until: Path, names: Sequence[str]
) -> dict[str, FenceReport]:
    """Fences engines, one of which is held until all are fenced."""
    cluster.generation += 1
    fence = Quiesce(mode=Quiesce.MODE_FENCE)
    asked = {name: cluster.direct(name, quiesce=fence) for name in names}
    for name in names:  # answered behind the fence
        cluster.ask(name, digest_layers=DigestLayers())
    until.touch()
    return {name: cluster.wait_for_result(name, asked[name]).fence_report for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["follow", "switch"])
def test_a_joiner_that_is_stopped_is_left_behind(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, place: str
) -> None:
    """In staging it holds up nobody; behind the commit it is lost like any engine."""
    begin(cluster, go, joining="e", failpoints={"e": [{"at": place, "action": "stop"}]})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.begin_staging()
    if place == "follow":
        go.touch()
        finish(cluster, expected, BOTH)
        assert not handover.has_parked(*"abcd")
        return
    handover.wait_until_staged()
    handover.switch_behind(STEP, go)
    for name in "abcd":
        assert handover.switching_result(name).HasField("activated")
    reports = cluster.fence(["e"])
    assert {r.applied_generation for r in reports.values()} == {handover.generation}
    cluster.engines["e"].kill()
    cluster.wait_until_dead("e")
    cluster.recover(BOTH)
    finish(cluster, expected, BOTH)
