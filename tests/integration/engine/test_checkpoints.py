"""Checkpoints on real engines: written while training continues, and restored on other engines."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model
from torch import nn

from benchmarks.oracle.reference import ReferenceResult
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria_common.model_config import ModelConfig
from planaria_worker.engine.layers.export import export_huggingface
from planaria_worker.models.state import LayerState
from support.engines import checkpoints
from support.engines.checkpoints import beginning_from, checkpointed
from support.engines.cluster import EngineCluster, names_of
from support.engines.small_plans import JobFiles, Pipeline
from support.engines.training_jobs import TrainingJob, training_job
from support.engines.zygote import Zygote
from support.own_model import tied_layers
from support.small_reference import initial_states

pytestmark = pytest.mark.integration

WIDTH = 24
TIED = {"import_path": "support.own_model:tied_layers", "arguments": {"width": WIDTH}}
ON_THREE = [Pipeline([("a", 3), ("b", 4)], [0, 1, 2]), Pipeline([("c", 7)], [3, 4, 5])]
ON_TWO = [Pipeline([("a", 5), ("b", 2)], [5, 4, 3, 2, 1, 0])]
ON_FIVE = [
    Pipeline([("a", 2), ("b", 5)], [0, 3]),
    Pipeline([("c", 4), ("d", 3)], [1, 4, 5]),
    Pipeline([("e", 7)], [2]),
]
ALONE = [Pipeline([("a", 7)], [0, 1, 2, 3, 4, 5])]


@contextmanager
def training(
    folder: Path, job: JobFiles, zygote: Zygote, plan: list[Pipeline], **failpoints: object
) -> Iterator[EngineCluster]:
    names = names_of(plan)
    with EngineCluster(folder, job, zygote) as cluster:
        cluster.prepare(*names, failpoints={name: [point] for name, point in failpoints.items()})  # type: ignore[list-item]
        cluster.train(plan)
        yield cluster


def make_checkpoint(folder: Path, job: TrainingJob, zygote: Zygote, root: Path) -> Path:
    """Trains to the end on three engines and seals the checkpoint of step 2."""
    files = checkpointed(job.files, root)
    with training(folder, files, zygote, ON_THREE) as cluster:
        layers = checkpoints.wait_until_written(cluster, 2)
        result = checkpoints.seal(cluster, "b", 2, layers)
        assert result.HasField("checkpoint_sealed"), result
        return Path(result.checkpoint_sealed.path)


@pytest.fixture(scope="module")
def checkpoint(job: TrainingJob, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpointed")
    return make_checkpoint(folder, job, zygote, folder / "runs")


@pytest.mark.parametrize("plan", [ON_TWO, ON_FIVE], ids=["two engines", "five engines"])
@pytest.mark.parametrize("is_parent", [False, True], ids=["itself", "the newest in its folder"])
def test_a_job_goes_on_from_a_checkpoint_on_other_numbers_of_nodes_bit_for_bit(
    tmp_path: Path,
    job: TrainingJob,
    zygote: Zygote,
    checkpoint: Path,
    expected: ReferenceResult,
    plan: list[Pipeline],
    is_parent: bool,
) -> None:
    files = beginning_from(job.files, checkpoint.parent if is_parent else checkpoint)
    with training(tmp_path, files, zygote, plan) as cluster:
        cluster.wait_until_finished()
        assert cluster.base_steps == 2
        assert cluster.digest(plan) == expected.digest
        assert cluster.losses() == expected.losses[2:]


def test_a_users_own_tied_weight_is_once_in_a_checkpoint_and_in_the_result(
    tmp_path: Path, zygote: Zygote
) -> None:
    job = training_job(tmp_path / "job", own_model=TIED)
    expected = job.run_reference()
    checkpoint = make_checkpoint(tmp_path / "whole", job, zygote, tmp_path / "runs")
    files = beginning_from(job.files, checkpoint)
    with training(tmp_path / "resumed", files, zygote, ON_TWO) as cluster:
        cluster.wait_until_finished()
        assert cluster.digest(ON_TWO) == expected.digest
        assert cluster.losses() == expected.losses[2:]
        address = cluster.engines["a"].snapshot.data_address
        sources = {layer: [address] if layer < 5 else [] for layer in range(7)}
        result = cluster.export("b", tmp_path / "out", sources, model_format="safetensors")
        assert result.HasField("exported"), result
    model = nn.Sequential(*tied_layers(WIDTH))
    load_model(model, tmp_path / "out" / "model.safetensors")
    for name, value in expected.parameters.items():
        assert torch.equal(model.get_parameter(name), value), name
    assert model.get_parameter("6.weight") is model.get_parameter("0.tokens.weight")


def test_every_layer_is_written_once_and_by_both_pipelines(
    tmp_path: Path, job: TrainingJob, zygote: Zygote, expected: ReferenceResult
) -> None:
    """Versions 2, 4 and the last; training does not notice."""
    files = checkpointed(job.files, tmp_path / "runs", keep=1)
    with training(tmp_path, files, zygote, ON_THREE) as cluster:
        for version in (2, 4, 5):
            layers = checkpoints.wait_until_written(cluster, version)
            assert sorted(layer.layer for layer in layers) == list(range(7))
            said = checkpoints.reports(cluster, version)
            assert all(said[name] for name in ("a", "b", "c")), "one engine wrote nothing"
        cluster.wait_until_finished()
        for version in (2, 4, 5):
            result = checkpoints.seal(
                cluster, "a", version, checkpoints.wait_until_written(cluster, version)
            )
            assert result.HasField("checkpoint_sealed"), result
        again = checkpoints.seal(cluster, "c", 5, checkpoints.wait_until_written(cluster, 5))
        assert again.checkpoint_sealed.path == str(tmp_path / "runs" / "step-00000005")
        assert cluster.digest(ON_THREE) == expected.digest
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["step-00000005"]


def test_a_writer_that_is_killed_leaves_a_gap_that_a_replica_fills(
    tmp_path: Path, job: TrainingJob, zygote: Zygote, expected: ReferenceResult
) -> None:
    """c dies when it has written one file of step 2; a and b, fenced at step 2, still have all."""
    files = checkpointed(job.files, tmp_path / "runs")
    kill = {"at": "checkpoint", "step": 2, "action": "kill", "skip": 1}
    hold = {"at": "forward", "step": 2, "action": "hold", "until": str(tmp_path / "go")}
    with EngineCluster(tmp_path, files, zygote) as cluster:
        cluster.prepare("a", "b", "c", failpoints={"a": [hold], "c": [kill]})
        cluster.train(ON_THREE)
        cluster.wait_until_dead("c")
        reports = cluster.fence(lost=["c"])
        assert {report.committed_steps for report in reports.values()} == {2}
        announced = {
            layer
            for name in ("a", "b")
            for report in checkpoints.reports(cluster, 2)[name]
            for layer in report.taken.layers
        }
        done = checkpoints.written(cluster, 2).keys()
        missing = sorted(set(range(7)) - announced - done)
        assert missing
        for name, held in (("a", range(3)), ("b", range(3, 7))):
            lacking = [layer for layer in missing if layer in held]
            if lacking:
                taken = checkpoints.write(cluster, name, 2, lacking)
                assert list(taken.checkpoint_taken.layers) == lacking
        layers = checkpoints.wait_until_written(cluster, 2)
        assert checkpoints.seal(cluster, "b", 2, layers).HasField("checkpoint_sealed")
        (tmp_path / "go").touch()
    resumed = beginning_from(job.files, tmp_path / "runs")
    with training(tmp_path / "again", resumed, zygote, ALONE) as cluster:
        cluster.wait_until_finished()
        assert cluster.digest(ALONE) == expected.digest


def test_a_hanging_disk_costs_no_step_and_replicas_write_instead(
    tmp_path: Path, job: TrainingJob, zygote: Zygote, expected: ReferenceResult
) -> None:
    """c hangs in step 2's files: it takes no part in 4 and 5, and a and b write all of the last."""
    files = checkpointed(job.files, tmp_path / "runs", deadline_seconds=1.0)
    answer, go = tmp_path / "answer", tmp_path / "go"
    hang = {"at": "checkpoint", "step": 2, "action": "hold", "until": str(answer)}
    hold = {"at": "forward", "step": 3, "action": "hold", "until": str(go)}
    with EngineCluster(tmp_path, files, zygote) as cluster:
        cluster.prepare("a", "b", "c", failpoints={"a": [hold], "c": [hang]})
        cluster.train(ON_THREE)
        assert "is not written after 1 s" in checkpoints.wait_for_failure(cluster, 2)
        go.touch()
        for version in (4, 5):
            checkpoints.wait_for_failure(cluster, version)
        cluster.wait_until_finished()
        assert cluster.digest(ON_THREE) == expected.digest
        taken, late = checkpoints.reports(cluster, 5)["c"]
        assert late.failure.reason == ErrorReason.ERROR_REASON_UNAVAILABLE
        refused = checkpoints.write(cluster, "c", 5, [0])
        assert refused.failure.reason == ErrorReason.ERROR_REASON_UNAVAILABLE
        for name, held in (("a", range(3)), ("b", range(3, 7))):
            given_back = [layer for layer in taken.taken.layers if layer in held]
            if given_back:
                checkpoints.write(cluster, name, 5, given_back)
        layers = checkpoints.wait_until_written(cluster, 5)
        assert checkpoints.seal(cluster, "b", 5, layers).HasField("checkpoint_sealed")
        answer.touch()


def test_a_layer_that_has_moved_on_is_not_written_as_another_version(
    tmp_path: Path, job: TrainingJob, zygote: Zygote
) -> None:
    with training(tmp_path, checkpointed(job.files, tmp_path / "runs"), zygote, ALONE) as cluster:
        cluster.wait_until_finished()
        for version in (4, 5):  # who still writes refuses for that reason
            checkpoints.wait_until_written(cluster, version)
        late = checkpoints.write(cluster, "a", 2, [3])
    assert late.failure.reason == ErrorReason.ERROR_REASON_WRONG_STATE
    assert "layer 3 is not held in version 2" in late.failure.message


def test_a_torn_file_is_never_part_of_a_complete_checkpoint(
    tmp_path: Path, job: TrainingJob, zygote: Zygote
) -> None:
    root = tmp_path / "runs"
    with training(tmp_path, checkpointed(job.files, root), zygote, ALONE) as cluster:
        layers = checkpoints.wait_until_written(cluster, 2)
        file = root / "step-00000002.partial" / "layer-0003.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        torn = checkpoints.seal(cluster, "a", 2, layers)
        file.unlink()
        gone = checkpoints.seal(cluster, "a", 2, layers)
    assert torn.failure.reason == ErrorReason.ERROR_REASON_CHECKPOINT_FAILED
    assert f"layer 3: {file} has" in torn.failure.message
    assert "it is torn" in torn.failure.message
    assert "storage that all nodes share" in gone.failure.message
    assert not (root / "step-00000002").exists()


def test_a_damaged_checkpoint_is_refused_without_fallback(
    tmp_path: Path, job: TrainingJob, zygote: Zygote, checkpoint: Path
) -> None:
    """Each names the file and the layer: what is missing at once, a flipped bit when it is read."""
    mine = tmp_path / "step-00000002"
    mine.mkdir()
    for file in checkpoint.iterdir():
        (mine / file.name).write_bytes(file.read_bytes())
    damaged = mine / "layer-0004.safetensors"
    contents = damaged.read_bytes()
    with EngineCluster(tmp_path / "a", beginning_from(job.files, mine), zygote) as cluster:
        damaged.write_bytes(contents[:-1] + bytes([contents[-1] ^ 1]))
        cluster.prepare("a")
        with pytest.raises(AssertionError, match=r"layer 4: .*layer-0004\.safetensors is damaged"):
            cluster.copy_initial(ALONE)
        damaged.unlink()
        missing = cluster.start("b")
    assert missing.failure.reason == ErrorReason.ERROR_REASON_INIT_UNUSABLE
    assert "node b: init_from: layer 4: " in missing.failure.message
    assert missing.failure.metadata["layer"] == "4"


def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, job: TrainingJob, zygote: Zygote, checkpoint: Path
) -> None:
    other = {**job.files.spec["model"], "rope_theta": 5000.0}
    files = beginning_from(job.files, checkpoint, model=other)
    with EngineCluster(tmp_path, files, zygote) as cluster:
        refused = cluster.start("a")
    assert refused.failure.reason == ErrorReason.ERROR_REASON_INIT_UNUSABLE
    assert "is of another model: rope_theta is 10000.0 there" in refused.failure.message


def test_a_disk_that_cannot_be_written_costs_the_checkpoint_and_no_step(
    tmp_path: Path, job: TrainingJob, zygote: Zygote, expected: ReferenceResult
) -> None:
    root = tmp_path / "runs"
    with EngineCluster(tmp_path, checkpointed(job.files, root), zygote) as cluster:
        cluster.prepare("a")
        (root / "step-00000002.partial").write_text("in the way")
        cluster.train(ALONE)
        message = checkpoints.wait_for_failure(cluster, 2)
        checkpoints.wait_until_written(cluster, 4)
        cluster.wait_until_finished()
        assert cluster.digest(ALONE) == expected.digest
    assert f"cannot write {root / 'step-00000002.partial'}" in message


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(
    tmp_path: Path, job: TrainingJob, zygote: Zygote
) -> None:
    (tmp_path / "file").write_text("in the way")
    files = checkpointed(job.files, tmp_path / "file" / "runs")
    with EngineCluster(tmp_path, files, zygote) as cluster:
        refused = cluster.start("a")
    assert refused.failure.reason == ErrorReason.ERROR_REASON_CHECKPOINT_FAILED
    assert "node a: checkpoint.path: cannot write" in refused.failure.message


def save_huggingface(folder: Path, job: TrainingJob, seed: int) -> dict[int, LayerState]:
    """Writes the job's model with the initial values of a seed; returns them."""
    config = job.reference.model
    assert isinstance(config, ModelConfig)
    states = initial_states(config, seed)
    views = ((layer, state.layout.views(state.parameters)) for layer, state in states.items())
    export_huggingface(folder, config, views)
    return states


def test_training_begins_from_a_hugging_face_folder_bit_for_bit(
    tmp_path: Path, job: TrainingJob, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are of another seed; order of samples and optimizer are those of the job."""
    states = save_huggingface(tmp_path / "model", job, seed=11)
    monkeypatch.setattr(
        "benchmarks.oracle.reference.initial_state", lambda model, layer, seed: states[layer]
    )
    expected = job.run_reference()
    files = beginning_from(job.files, tmp_path / "model")
    with training(tmp_path, files, zygote, ON_THREE) as cluster:
        cluster.wait_until_finished()
        assert cluster.base_steps == 0
        assert cluster.digest(ON_THREE) == expected.digest
        assert cluster.losses() == expected.losses


def test_weights_that_differ_between_nodes_are_detected(
    tmp_path: Path, job: TrainingJob, zygote: Zygote
) -> None:
    """By what each engine says of them, as for data; and a folder without the model is refused."""
    bases = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        save_huggingface(tmp_path / name, job, seed)
        files = beginning_from(job.files, tmp_path / name)
        with EngineCluster(tmp_path / f"cluster-{name}", files, zygote) as cluster:
            bases.append(cluster.start(name).prepared.initial_state.sha256)
    assert bases[0] == bases[1] != bases[2]
    (tmp_path / "empty").mkdir()
    files = beginning_from(job.files, tmp_path / "empty")
    with EngineCluster(tmp_path / "cluster", files, zygote) as cluster:
        refused = cluster.start("a")
    assert refused.failure.reason == ErrorReason.ERROR_REASON_INIT_UNUSABLE
    assert "holds neither checkpoints nor Hugging Face safetensors" in refused.failure.message
