"""What is exported is what was trained, and transformers reads it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from planaria_common.model_config import ModelConfig
from planaria_worker.engine.layers.export import ExportError, export_huggingface
from planaria_worker.models.stage import build_stage
from planaria_worker.models.state import LayerState
from planaria_worker.models.transformer import transformer
from support.small_reference import NUM_LAYERS, initial_states, small_model


def _layers(states: dict[int, LayerState]) -> Iterator[tuple[int, dict[str, Tensor]]]:
    for layer, state in states.items():
        yield layer, state.layout.views(state.parameters)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_transformers_computes_the_same_logits(tmp_path: Path, family: str, tied: bool) -> None:
    config = small_model(family, tie_word_embeddings=tied)
    states = initial_states(config)
    backwards = dict(reversed(states.items()))  # layers may come in any order
    export_huggingface(tmp_path / "out" / "model", config, _layers(backwards))
    token_ids = torch.arange(48).view(2, 24)
    stage = build_stage(transformer(config), 0, NUM_LAYERS, states)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    assert reloaded.config.tie_word_embeddings == tied
    assert torch.equal(reloaded(token_ids, use_cache=False).logits, stage(token_ids))


def test_an_exported_configuration_reads_back(tmp_path: Path) -> None:
    config = small_model("qwen3", head_dim=16)
    export_huggingface(tmp_path / "model", config, _layers(initial_states(config)))
    stored = json.loads((tmp_path / "model" / "config.json").read_text())
    again = ModelConfig.from_huggingface(stored)
    for name in ("hidden_size", "num_blocks", "head_dim", "num_key_value_heads", "rope_theta"):
        assert getattr(again, name) == getattr(config, name), name


def test_exporting_again_replaces_the_model_and_keeps_other_files(tmp_path: Path) -> None:
    config = small_model("llama")
    export_huggingface(tmp_path / "model", config, _layers(initial_states(config, seed=1)))
    (tmp_path / "model" / "notes.txt").write_text("mine")
    export_huggingface(tmp_path / "model", config, _layers(initial_states(config, seed=2)))
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == ["config.json", "model.safetensors", "notes.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_missing_layer_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    config = small_model("llama")
    states = initial_states(config)
    del states[2]
    with pytest.raises(ValueError, match=r"layer 2: model\.layers\.1\..* is missing"):
        export_huggingface(tmp_path / "model", config, _layers(states))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config = small_model("llama")
    with pytest.raises(ExportError, match=r"output\.path: cannot write .*/file/model"):
        export_huggingface(tmp_path / "file" / "model", config, _layers(initial_states(config)))
