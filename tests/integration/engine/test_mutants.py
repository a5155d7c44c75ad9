"""The guards are needed: an engine without one is right until something fails, and wrong then."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine import test_evaluation
from integration.engine.handover import test_around_the_commit, test_joining_and_leaving
from integration.engine.handover.staged import NUM_STEPS
from integration.engine.scenarios import (
    BEFORE,
    begin_the_step_again_without_a,
    finish_the_step_without_a,
    lose_the_only_rank_without_a_sum,
    obey_a_stale_coordinator,
    train_undisturbed,
)
from support.engine_harness import EngineCluster
from support.engine_zygote import Zygote
from support.training_jobs import training_job

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("mutant", "scenario", "seen"),
    [
        # Layers 0 to 2 of the step were never summed: a died with its part of them. Whether c has
        # committed them all the same, or has no source for them, is a matter of who comes first.
        (
            "one_phase",
            lose_the_only_rank_without_a_sum,
            "a step that nobody could finish|without an address only version 0",
        ),
        # A directive of a generation that is over is carried out.
        ("no_generation_check", obey_a_stale_coordinator, "fence_report"),
    ],
)
def test_without_its_guard_the_scenario_fails(
    tmp_path: Path,
    zygote: Zygote,
    mutant: str,
    scenario: Callable[[EngineCluster, str], None],
    seen: str,
) -> None:
    job = training_job(tmp_path / "job", clip_norm=1e9)
    digest = job.run_reference().digest
    with EngineCluster(tmp_path / "engines", job.files, zygote, mutant=mutant) as cluster:
        train_undisturbed(cluster, digest)
        with pytest.raises(AssertionError, match=seen):
            scenario(cluster, digest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "scenario"),
    [
        ("whole_sums_unknown", finish_the_step_without_a),
        ("whole_sums_grow", finish_the_step_without_a),
        ("broken_gradients_kept", begin_the_step_again_without_a),
    ],
)
def test_without_its_guard_something_is_in_a_step_twice(
    tmp_path: Path,
    zygote: Zygote,
    mutant: str,
    scenario: Callable[[EngineCluster, str], None],
) -> None:
    job = training_job(tmp_path / "job")
    digest = job.run_reference().digest
    with EngineCluster(tmp_path / "guarded", job.files, zygote) as cluster:
        scenario(cluster, digest)
    with EngineCluster(tmp_path / "engines", job.files, zygote, mutant=mutant) as cluster:
        train_undisturbed(cluster, digest)
        with pytest.raises(AssertionError, match="something is in the step twice"):
            scenario(cluster, digest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "scenario", "seen"),
    [
        (
            "promise_for_ever",
            test_around_the_commit.test_a_straggler_is_told_and_stands_still,
            "0, 1, 2",
        ),
        (
            "hearsay",
            test_around_the_commit.test_an_engine_of_the_exchange_takes_no_place_by_hearsay,
            "assert 5 == 4",
        ),
        (
            "layers_dropped_at_once",
            test_joining_and_leaving.test_layers_of_the_place_before_last_until_the_first_commit,
            "2: 5",
        ),
    ],
)
def test_without_its_guard_a_handover_fails(
    tmp_path: Path,
    zygote: Zygote,
    mutant: str,
    scenario: Callable[[EngineCluster, ReferenceResult, Path, Path], None],
    seen: str,
) -> None:
    job = training_job(tmp_path / "job", num_steps=NUM_STEPS)
    expected = job.run_reference()
    with (
        EngineCluster(tmp_path / "engines", job.files, zygote, mutant=mutant) as cluster,
        pytest.raises(AssertionError, match=seen),
    ):
        scenario(cluster, expected, tmp_path / "go", tmp_path)


@pytest.mark.slow
def test_what_rides_on_a_lost_microbatch_is_missed_if_it_is_not_evaluated_again(
    tmp_path: Path, zygote: Zygote
) -> None:
    """[1] The verdict counts; an engine that does not would commit another number."""
    job = training_job(tmp_path / "job", evaluation=test_evaluation.HELD_OUT)
    expected = job.run_reference()
    lose_b = test_evaluation.lose_b
    failpoint: dict[str, object] = {"at": "before_exchange"}
    with EngineCluster(
        tmp_path / "counted", job.files, zygote, mutant="first_pass_evaluates"
    ) as cluster:
        lose_b(cluster, 2, failpoint)
        said = cluster.engines["d"].events
        cluster.wait_for(
            "fatal fault", lambda: [e.fault for e in said if e.HasField("fault") and e.fault.fatal]
        )
        assert "missing in a gradient sum or an evaluation" in said[-1].fault.failure.message
    with EngineCluster(
        tmp_path / "uncounted", job.files, zygote, mutant="evaluations_uncounted"
    ) as cluster:
        lose_b(cluster, 2, failpoint)
        cluster.wait_until_finished("c", "d")
        assert cluster.digest(test_evaluation.AFTER) == expected.digest
        assert cluster.evaluation_losses()[2] < expected.evaluation_losses[2]


def test_sums_that_changed_places_are_not_committed(tmp_path: Path, zygote: Zygote) -> None:
    """Without the one order of all ranks a layer is added to another: the replicas' norms tell."""
    job = training_job(tmp_path / "job")
    with EngineCluster(
        tmp_path / "engines", job.files, zygote, mutant="sums_in_another_order"
    ) as cluster:
        cluster.prepare("a", "b", "c", "d")
        cluster.train(BEFORE)
        fault = cluster.wait_for_fault("b")
        assert "layer 3: replicas have different gradient sums" in fault.failure.message
