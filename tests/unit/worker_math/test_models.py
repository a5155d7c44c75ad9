"""Models cut into layers: any cut computes what the whole computes, and sizes are what they say."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from planaria_common.model_config import ModelConfig
from planaria_common.model_sizes import layer_sizes
from planaria_worker.engine.numerics.loss import summed_cross_entropy
from planaria_worker.models.layout import ALIGNMENT, layer_layout
from planaria_worker.models.stage import build_stage, hosted_layers
from planaria_worker.models.state import (
    SLOTS,
    LayerState,
    empty_state,
    filled_state,
    initial_state,
)
from planaria_worker.models.transformer import huggingface_config, transformer
from support.small_reference import NUM_LAYERS, initial_states, small_model

FAMILIES = pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
TIED = pytest.mark.parametrize("tied", [False, True])
TOKENS = torch.arange(48).view(2, 24)


def _whole(config: ModelConfig, states: dict[int, LayerState]) -> torch.nn.Module:
    """The model as transformers builds it, with our parameters."""
    whole: torch.nn.Module = AutoModelForCausalLM.from_config(huggingface_config(config))
    values = {
        name: value
        for state in states.values()
        for name, value in state.layout.views(state.parameters).items()
    }
    names = {name for name, _ in whole.named_parameters()}
    assert names == set(values)
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            parameter.copy_(values[name])
    return whole


@TIED
@FAMILIES
def test_chained_stages_give_the_logits_of_the_whole(family: str, tied: bool) -> None:
    config = small_model(family, tie_word_embeddings=tied)
    states = initial_states(config)
    expected = _whole(config, states)(TOKENS, use_cache=False).logits
    model = transformer(config)
    for cuts in ([0, 5], [0, 1, 5], [0, 2, 4, 5], [0, 1, 2, 3, 4, 5]):
        hidden = TOKENS
        for first, end in pairwise(cuts):
            hidden = build_stage(model, first, end - first, states)(hidden)
        assert torch.equal(hidden, expected)


@FAMILIES
def test_parameters_have_their_original_names(family: str) -> None:
    config = small_model(family)
    stage = build_stage(transformer(config), 1, 2, initial_states(config))
    whole = {name for name, _ in _whole(config, initial_states(config)).named_parameters()}
    names = {name for name, _ in stage.named_parameters()}
    assert names <= whole
    assert names == {name for layer in stage.layers.values() for name in layer}
    block = "h" if family == "gpt2" else "layers"
    assert all(f".{block}.1." in name for name in stage.layers[2])


@FAMILIES
def test_initial_values_depend_on_the_seed_and_the_name_alone(family: str) -> None:
    model = transformer(small_model(family))
    one, again = initial_state(model, 2, seed=1), initial_state(model, 2, seed=1)
    assert torch.equal(one.parameters, again.parameters)
    assert not torch.equal(one.parameters, initial_state(model, 2, seed=2).parameters)
    assert one.parameters.shape == initial_state(model, 3, seed=1).parameters.shape
    matrices = [
        view
        for state in (one, initial_state(model, 3, seed=1))
        for view in state.layout.views(state.parameters).values()
        if view.dim() > 1
    ]
    assert all(0.002 < float(matrix.std()) < 0.03 for matrix in matrices)
    beginnings = {tuple((matrix / matrix.std()).flatten()[:4].tolist()) for matrix in matrices}
    assert len(beginnings) == len(matrices)


def test_a_new_stage_keeps_the_layers_it_already_has() -> None:
    """A survivor's layers stay where they are in memory; only the new ones are filled."""
    config = small_model("llama")
    model = transformer(config)
    states = initial_states(config)
    held = {layer: states[layer] for layer in (1, 2)}
    addresses = {layer: state.parameters.data_ptr() for layer, state in held.items()}
    arriving = empty_state(layer_layout(model, 3))
    for slot in SLOTS:
        arriving.buffer(slot).copy_(states[3].buffer(slot))
    stage = build_stage(model, 1, 3, {**held, 3: arriving})
    assert {layer: stage.states[layer].parameters.data_ptr() for layer in (1, 2)} == addresses
    hidden = torch.randn(2, 24, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(stage(hidden), build_stage(model, 1, 3, states)(hidden))


@FAMILIES
def test_a_tied_head_hosts_the_embeddings_layer_too(family: str) -> None:
    config = small_model(family, tie_word_embeddings=True)
    model = transformer(config)
    last = NUM_LAYERS - 1
    assert hosted_layers(model, last, 1) == (0, last)
    assert hosted_layers(model, 0, NUM_LAYERS) == tuple(range(NUM_LAYERS))
    assert hosted_layers(model, 0, 2) == (0, 1)
    stage = build_stage(model, last, 1, initial_states(config))
    uses = [leaf for leaf in stage.leaves if leaf.layer == 0]
    assert [leaf.name for leaf in uses] == [model.tied.owner_name if model.tied else ""]
    whole = build_stage(model, 0, NUM_LAYERS, initial_states(config))
    uses = [leaf for leaf in whole.leaves if leaf.name == uses[0].name]
    assert len(uses) == 2
    assert uses[0].parameter.data_ptr() == uses[1].parameter.data_ptr()
    assert uses[0].parameter is not uses[1].parameter


def test_tensors_are_aligned_and_sorted() -> None:
    layout = layer_layout(transformer(small_model("qwen3")), 1)
    names = [tensor.name for tensor in layout.tensors]
    assert names == sorted(names)
    assert all(tensor.offset % ALIGNMENT == 0 for tensor in layout.tensors)
    assert layout.num_elements % ALIGNMENT == 0


@pytest.mark.parametrize(("first", "count"), [(0, 0), (-1, 2), (4, 2), (5, 1)])
def test_layers_outside_the_model_are_refused(first: int, count: int) -> None:
    config = small_model("llama")
    with pytest.raises(ValueError, match=r"are not all in 0\.\.4"):
        build_stage(transformer(config), first, count, initial_states(config))


def test_missing_states_and_tensors_are_named() -> None:
    config = small_model("llama")
    model = transformer(config)
    with pytest.raises(ValueError, match=r"no state for layers \[2\]"):
        build_stage(model, 1, 2, {1: initial_state(model, 1, seed=0)})
    with pytest.raises(ValueError, match=r"no tensor named model\.embed_tokens\.weight"):
        filled_state(layer_layout(model, 0), {})
    with pytest.raises(ValueError, match=r"embed_tokens\.weight: shape \(3, 4\), the model has"):
        filled_state(layer_layout(model, 0), {"model.embed_tokens.weight": torch.zeros(3, 4)})


def test_a_model_with_dropout_must_know_the_microbatch() -> None:
    config = small_model("gpt2", dropout=0.1)
    stage = build_stage(transformer(config), 0, NUM_LAYERS, initial_states(config))
    with pytest.raises(ValueError, match="which microbatch"):
        stage(TOKENS)


SHAPES: list[dict[str, object]] = [
    {},
    {"hidden_size": 64, "intermediate_size": 80, "num_layers": 1},
    {"hidden_size": 48, "num_heads": 6, "vocab_size": 300, "attention_bias": True},
]


@pytest.mark.parametrize("shape", SHAPES)
@TIED
@FAMILIES
def test_sizes_count_the_real_parameters(family: str, tied: bool, shape: dict[str, object]) -> None:
    config = small_model(family, tie_word_embeddings=tied, **shape)
    model = transformer(config)
    sizes = layer_sizes(config, 2, 24)
    layouts = [layer_layout(model, layer) for layer in range(model.num_layers)]
    hosted = [
        sum(layouts[held].num_parameters for held in hosted_layers(model, layer, 1))
        for layer in range(model.num_layers)
    ]
    assert [size.parameter_bytes for size in sizes] == [4 * count for count in hosted]
    assert [size.state_bytes for size in sizes] == [24 * count for count in hosted]


@FAMILIES
def test_sizes_count_what_is_kept_and_sent(family: str) -> None:
    """The tensors that autograd saves, each storage once, without parameters and constants."""
    config = small_model(family, hidden_size=64, intermediate_size=96)
    model = transformer(config)
    states = initial_states(config)
    build_stage(model, 0, NUM_LAYERS, states)(TOKENS)  # the rotary tables are made here
    hidden = TOKENS
    for layer, size in enumerate(layer_sizes(config, 2, 24)):
        stage = build_stage(model, layer, 1, states)
        outputs, saved = _saved_bytes(stage, hidden, states)
        assert size.activation_bytes == saved, size.name
        if layer < NUM_LAYERS - 1:
            hidden = outputs.detach().requires_grad_()
            assert size.output_bytes == hidden.nbytes


def _saved_bytes(
    stage: Callable[[Tensor], Tensor], inputs: Tensor, states: dict[int, LayerState]
) -> tuple[Tensor, int]:
    kept: dict[int, int] = {}
    constants = {state.parameters.untyped_storage().data_ptr() for state in states.values()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        is_rotary_table = tensor.shape[:2] == (1, 1)
        if storage.data_ptr() not in constants and not is_rotary_table:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = stage(inputs)
        if outputs.shape[-1] == 256:
            outputs = summed_cross_entropy(outputs, TOKENS)
    return outputs, sum(kept.values())


def test_a_hugging_face_configuration_is_read() -> None:
    config = ModelConfig.from_huggingface(
        {
            "model_type": "llama",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 1000,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "tie_word_embeddings": True,
        }
    )
    assert (config.num_layers, config.rope_theta) == (4, 500000.0)
    states = initial_states(config)
    tokens = torch.arange(200).view(2, 100)
    stage = build_stage(transformer(config), 0, 4, states)
    assert torch.equal(stage(tokens), _whole(config, states)(tokens, use_cache=False).logits)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not one of gpt2, llama, qwen3"),
        ({"model_type": "gpt2", "n_embd": 8}, "lacks n_head, n_layer, vocab_size"),
        ({"model_type": "llama", "rope_scaling": {"type": "dynamic"}}, "rope_type 'dynamic'"),
        ({"model_type": "qwen3", "use_sliding_window": True}, "use_sliding_window is not"),
    ],
)
def test_a_hugging_face_configuration_we_cannot_run_says_why(
    stored: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_huggingface(stored)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "bert"}, "model.family: 'bert' is not one of gpt2, llama, qwen3"),
        ({"hidden_size": 0}, "model.hidden_size: 0 is not at least 1"),
        ({"num_layers": 0}, "model.num_layers: 0 is not at least 1"),
        ({"hidden_size": 30}, "model.hidden_size: 30 is not a multiple of num_heads, 4"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide num_heads, 4"),
        ({"head_dim": 7}, "model.head_dim: 7 is odd"),
        ({"dropout": 1.0}, r"model.dropout: 1.0 is not in \[0, 1\)"),
        ({"family": "gpt2", "num_key_value_heads": 2}, "gpt2 has as many as num_heads, 4"),
        ({"family": "gpt2", "head_dim": 16}, "gpt2's is hidden_size / num_heads, 8"),
    ],
)
def test_a_wrong_model_names_the_field(changes: dict[str, object], message: str) -> None:
    family = str(changes.pop("family", "llama"))
    with pytest.raises(ValueError, match=message):
        small_model(family, **changes)


def test_too_long_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.sequence_length: 33 is more than .*, 32"):
        layer_sizes(small_model("llama"), 1, 33)
