"""A tied embedding lives in two stages of every pipeline: it is summed, copied and lost as one."""

from pathlib import Path

import pytest

from integration.engine.scenarios import finish
from support.engines.cluster import EngineCluster
from support.engines.handover import Handover
from support.engines.small_plans import Pipeline
from support.engines.training_jobs import training_job
from support.engines.zygote import Zygote

pytestmark = pytest.mark.integration


def test_a_tied_embedding_survives_the_loss_of_its_first_stage(
    tmp_path: Path, zygote: Zygote
) -> None:
    job = training_job(tmp_path / "job", family="gpt2", tie_word_embeddings=True)
    expected = job.run_reference()
    plan = [Pipeline([("a", 2), ("b", 5)], [0, 1, 2]), Pipeline([("c", 7)], [3, 4, 5])]
    after = [Pipeline([("b", 4), ("c", 3)], [0, 1, 2, 3, 4, 5])]
    with EngineCluster(tmp_path / "engines", job.files, zygote) as cluster:
        killed = {"at": "reduce", "action": "kill", "step": 2}
        cluster.prepare("a", "b", "c", failpoints={"a": [killed]})
        cluster.train(plan)
        cluster.wait_until_dead("a")
        held = cluster.roll_forward(cluster.quiesce())
        assert held["b"].keys() == {0, 2, 3, 4, 5, 6}
        copied = cluster.copy_missing(after, held)
        assert copied.keys() == {"b"}  # only layer 1: the head's stage has the embedding
        cluster.activate(after)
        finish(cluster, expected, after)


def test_a_tied_embedding_is_followed_by_both_future_owners(tmp_path: Path, zygote: Zygote) -> None:
    """Two joiners of one pipeline take layer 0; a third engine leaves."""
    job = training_job(tmp_path / "job", family="gpt2", tie_word_embeddings=True)
    expected = job.run_reference()
    before = [Pipeline([("a", 2), ("b", 5)], [0, 1, 2]), Pipeline([("c", 7)], [3, 4, 5])]
    after = [
        Pipeline([("a", 2), ("b", 5)], [0, 1, 2], keeps=True),
        Pipeline([("d", 4), ("e", 3)], [3, 4, 5]),
    ]
    with EngineCluster(tmp_path / "engines", job.files, zygote) as cluster:
        go = tmp_path / "go"
        waiting = {"at": "forward", "action": "hold", "step": 2, "until": str(go)}
        cluster.prepare(*"abcde", failpoints={"a": [waiting]})
        cluster.train(before)
        handover = Handover(cluster, before, after)
        handover.stage()
        handover.switch_after(2, go)
        handover.wait_until_switched()
        finish(cluster, expected, after)
