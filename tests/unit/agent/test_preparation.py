"""What a node reads before an engine starts: the text to train on, and the one to evaluate on."""

import json
from pathlib import Path

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.agent.preparation import PreparedData, prepare_data

TEXT = "A planarian, cut into pieces, regrows from each of them.\n" * 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text(TEXT)
    (tmp_path / "held-out.txt").write_text(TEXT.upper())
    return tmp_path


def prepared(folder: Path, evaluation: dict[str, object] | None = None) -> PreparedData:
    spec = {
        "model": {"import_path": "m:layers"},
        "data": {"path": str(folder / "train.txt")},
        "training": {"steps": 3},
        "evaluation": evaluation,
    }
    return prepare_data(json.dumps(spec), folder / "cache", "node-1")


def own_text(folder: Path) -> dict[str, object]:
    return {"data": {"path": str(folder / "held-out.txt")}}


def test_the_digest_is_that_of_all_text(folder: Path) -> None:
    """Nodes must agree on what they evaluate on as on what they train on."""
    alone = prepared(folder)
    both = prepared(folder, own_text(folder))
    assert (alone.digest, alone.evaluation_path) == (alone.path.stem, None)
    assert prepared(folder, {"fraction": 0.1}) == alone
    assert both.evaluation_path is not None
    assert both.evaluation_path.is_file()
    assert (both.path, both.num_tokens) == (alone.path, alone.num_tokens)
    (folder / "held-out.txt").write_text(TEXT)
    assert len({alone.digest, both.digest, prepared(folder, own_text(folder)).digest}) == 3


def test_a_text_to_evaluate_on_that_is_not_there_is_named_with_the_node(folder: Path) -> None:
    (folder / "held-out.txt").unlink()
    with pytest.raises(PlanariaError, match=r"node node-1: .*held-out\.txt") as caught:
        prepared(folder, own_text(folder))
    assert caught.value.reason is ErrorReason.DATA_UNUSABLE
    assert caught.value.metadata["path"] == str(folder / "held-out.txt")
