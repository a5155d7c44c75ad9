"""A job can start from what transformers has saved."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from planaria_common.model_config import ModelConfig
from planaria_worker.engine.layers.export import export_huggingface
from planaria_worker.engine.layers.pretrained import PretrainedError, PretrainedFolder
from planaria_worker.models.layout import layer_layout
from planaria_worker.models.stage import build_stage
from planaria_worker.models.state import LayerState, filled_state
from planaria_worker.models.transformer import huggingface_config, transformer
from support.small_reference import NUM_LAYERS, initial_states, small_model


def _saved(
    folder: Path, config: ModelConfig, shard: str, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    torch.manual_seed(5)
    whole: PreTrainedModel = AutoModelForCausalLM.from_config(huggingface_config(config)).to(dtype)
    whole.save_pretrained(folder, max_shard_size=shard)
    return whole


def _loaded(
    folder: Path, config: ModelConfig, dtype: torch.dtype = torch.float32
) -> dict[int, LayerState]:
    model = transformer(config)
    source = PretrainedFolder.open(folder)
    return {
        layer: filled_state(
            layer_layout(model, layer), source.read_layer(model, layer), compute_dtype=dtype
        )
        for layer in range(model.num_layers)
    }


@pytest.mark.parametrize("shard", ["1GB", "50KB"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_stages_start_from_a_saved_model(
    tmp_path: Path, family: str, tied: bool, shard: str
) -> None:
    config = small_model(family, tie_word_embeddings=tied)
    whole = _saved(tmp_path, config, shard)
    stage = build_stage(transformer(config), 0, NUM_LAYERS, _loaded(tmp_path, config))
    tokens = torch.arange(48).view(2, 24)
    assert torch.equal(stage(tokens), whole.eval()(tokens, use_cache=False).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_saved_in_bfloat16_lose_nothing(
    tmp_path: Path, tied: bool, dtype: torch.dtype
) -> None:
    """The master weights are theirs exactly; what is computed with as well, in either type."""
    config = small_model("llama", tie_word_embeddings=tied)
    whole = _saved(tmp_path, config, "50KB", torch.bfloat16)
    states = _loaded(tmp_path, config, dtype)
    for state in states.values():
        for name, value in state.layout.views(state.parameters).items():
            assert value.dtype == torch.float32
            assert torch.equal(value, whole.get_parameter(name).float())
    stage = build_stage(transformer(config), 0, NUM_LAYERS, states)
    tokens = torch.arange(48).view(2, 24)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    assert torch.equal(stage(tokens), theirs(tokens, use_cache=False).logits)


def test_an_exported_model_is_loaded_again(tmp_path: Path) -> None:
    config = small_model("gpt2")
    states = initial_states(config)
    views = ((layer, state.layout.views(state.parameters)) for layer, state in states.items())
    export_huggingface(tmp_path / "model", config, views)
    for layer, state in _loaded(tmp_path / "model", config).items():
        assert torch.equal(state.parameters, states[layer].parameters)


def test_a_body_saved_without_its_head_is_read(tmp_path: Path) -> None:
    config = small_model("gpt2", tie_word_embeddings=True)
    torch.manual_seed(5)
    whole = AutoModelForCausalLM.from_config(huggingface_config(config))
    whole.transformer.save_pretrained(tmp_path)
    states = _loaded(tmp_path, config)
    assert torch.equal(
        states[0].layout["transformer.wte.weight"].view(states[0].parameters),
        whole.transformer.wte.weight,
    )


def test_an_unusable_weights_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PretrainedError, match=r"init_from: .* has neither model\.safetensors"):
        PretrainedFolder.open(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(PretrainedError, match="init_from: cannot read"):
        PretrainedFolder.open(tmp_path)
    _saved(tmp_path, small_model("llama"), "1GB")
    with pytest.raises(PretrainedError, match=r"embed_tokens\.weight has shape \(256, 32\)"):
        _loaded(tmp_path, small_model("llama", vocab_size=300))
    with pytest.raises(PretrainedError, match=r"has no tensor model\.layers\.3\."):
        _loaded(tmp_path, small_model("llama", num_layers=4))
