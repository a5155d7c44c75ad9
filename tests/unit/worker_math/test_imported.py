"""A user's own model: what it must be, what it begins with, and what it is refused for."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_model
from torch import Tensor, nn

from planaria_worker.engine.job import output_shapes
from planaria_worker.engine.layers.export import export_safetensors
from planaria_worker.models.imported import ImportedModel, ImportedModelError, import_model
from planaria_worker.models.layer import TiedWeight
from planaria_worker.models.layout import layer_layout
from planaria_worker.models.stage import Microbatch, build_stage
from planaria_worker.models.state import initial_state
from support import own_model
from support.own_model import Paced

Define = Callable[[object], str]


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Define:
    """Makes a function importable; returns its import path."""

    def define(function: object) -> str:
        module = ModuleType("a_users_module")
        module.layers = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return "a_users_module:layers"

    return define


def own() -> ImportedModel:
    return import_model("support.own_model:layers", {"width": 24})


def test_parameters_are_on_meta_and_buffers_are_real() -> None:
    model = own()
    assert all(p.is_meta for layer in model.layers for p in layer.parameters())
    built = model.build_layer(0).parts["0"]
    positions = built.get_buffer("positions")
    assert torch.equal(positions, torch.linspace(-1, 1, 24))
    assert len(model.source_digest) == 64


def test_initial_values_follow_from_the_seed_and_the_layer_alone() -> None:
    torch.manual_seed(1)
    once = [initial_state(own(), layer, seed=7) for layer in range(7)]
    torch.manual_seed(2)
    again = [initial_state(own(), layer, seed=7) for layer in reversed(range(7))][::-1]
    other = [initial_state(own(), layer, seed=8) for layer in range(7)]
    for a, b, c in zip(once, again, other, strict=True):
        assert torch.equal(a.parameters, b.parameters)
        assert not a.layout.tensors or not torch.equal(a.parameters, c.parameters)
    first, second = once[1], once[3]
    assert not torch.equal(
        first.layout["1.up.weight"].view(first.parameters),
        second.layout["3.up.weight"].view(second.parameters),
    )


def test_initial_values_are_those_of_reset_parameters_the_modules_own_last() -> None:
    state = initial_state(own(), 1, seed=7)
    assert state.layout["1.down.weight"].view(state.parameters).std() == pytest.approx(
        0.01, rel=0.1
    )
    assert state.layout["1.up.weight"].view(state.parameters).abs().max() < 24**-0.5  # nn.Linear's
    assert torch.equal(state.layout["1.scale"].view(state.parameters), torch.ones(24))


def test_names_are_those_in_a_sequential() -> None:
    model = own()
    names = {t.name for layer in range(7) for t in layer_layout(model, layer).tensors}
    assert names == set(nn.Sequential(*model.layers).state_dict()) - {"0.positions"}


def test_shapes_between_layers_need_not_be_alike() -> None:
    shapes = output_shapes(own(), (2, 10))
    assert shapes == (*[(2, 10, 24)] * 4, (2, 10, 12), (2, 10, 12), (2, 10, 256))


def test_layers_that_take_longer_are_not_alike(define: Define) -> None:
    kinds = [model.kind_of(layer) for model in [own()] for layer in range(7)]
    assert kinds[1] == kinds[3] != kinds[5]
    paced = import_model(define(lambda: ends(Paced(0.1), Paced(0.2))), {})
    assert paced.kind_of(1) != paced.kind_of(2)


class Recurrent(nn.Module):
    """Its GRU keeps its weights in a list of its own as well."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.GRU(8, 8, batch_first=True)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.mix(hidden)[0]
        return result


def test_recurrent_layers_compute_with_the_state(define: Define) -> None:
    model = import_model(define(lambda: ends(Recurrent())), {})
    states = {1: initial_state(model, 1, seed=7)}
    hidden = torch.ones(2, 5, 8)
    before = build_stage(model, 1, 1, states)(hidden, Microbatch(step=0, index=0))
    states[1].parameters.zero_()
    after = build_stage(model, 1, 1, states)(hidden, Microbatch(step=0, index=0))
    assert before.abs().max() > 0
    assert torch.equal(after, torch.zeros(2, 5, 8))


class Counting(nn.Module):
    """Changes a buffer in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        self.get_buffer("count").add_(1)
        return hidden


def ends(*middle: nn.Module, outputs: int = 256) -> list[nn.Module]:
    return [nn.Embedding(256, 8), *middle, nn.Linear(8, outputs)]


def shared(owner: int, user: int) -> list[nn.Module]:
    layers = ends(nn.Linear(8, 8), nn.Linear(8, 8))
    layers[user].weight = layers[owner].weight
    return layers


def made_first_and_given_twice() -> list[nn.Module]:
    weight = nn.Parameter(torch.zeros(256, 8))
    layers = ends(nn.Linear(8, 8))
    layers[0].weight = layers[2].weight = weight
    return layers


class Borrowing(nn.Module):
    """A head that has the embedding as a part."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.embedding = embedding

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(self.norm(hidden), self.embedding.weight)


def borrowed() -> list[nn.Module]:
    embedding = nn.Embedding(256, 8)
    return [embedding, Borrowing(embedding)]


TIED: dict[str, tuple[Callable[[], list[nn.Module]], str]] = {
    "assigned": (lambda: shared(0, 3), "3.weight"),
    "made first and given twice": (made_first_and_given_twice, "2.weight"),
    "a part of both": (borrowed, "1.embedding.weight"),
}


@pytest.mark.parametrize(("function", "user_name"), TIED.values(), ids=TIED.keys())
def test_a_parameter_of_the_first_layer_may_be_the_last_ones_too(
    define: Define, function: Callable[[], list[nn.Module]], user_name: str
) -> None:
    model = import_model(define(function), {})
    last = model.num_layers - 1
    assert model.tied == TiedWeight(
        owner_layer=0, owner_name="0.weight", user_layer=last, user_name=user_name
    )
    assert output_shapes(model, (2, 5))[-1] == (2, 5, 256)
    of_first, of_last = (layer_layout(model, layer).tensors for layer in (0, last))
    assert [tensor.name for tensor in of_first] == ["0.weight"]
    assert {tensor.name for tensor in of_last} == model.initial_parameters(last, seed=7).keys()
    assert user_name not in {tensor.name for tensor in of_last}


def test_a_model_with_a_tied_weight_is_exported_as_its_layers_load_it(tmp_path: Path) -> None:
    model = import_model("support.own_model:tied_layers", {"width": 24})
    states = {layer: initial_state(model, layer, seed=7) for layer in range(7)}
    views = ((layer, state.layout.views(state.parameters)) for layer, state in states.items())
    export_safetensors(tmp_path / "model", model, views)
    loaded = nn.Sequential(*own_model.tied_layers(24)).eval()
    load_model(loaded, tmp_path / "model" / "model.safetensors")
    assert loaded.get_parameter("6.weight") is loaded.get_parameter("0.tokens.weight")
    tokens = torch.arange(20).view(2, 10)
    stage = build_stage(model, 0, 7, states)
    with stage.evaluating():
        assert torch.equal(loaded(tokens), stage(tokens))


def tied_and(owner: int, name: str, user: int) -> list[nn.Module]:
    """Tied as it may be, and one use more."""
    layers = shared(0, 3)
    setattr(layers[user], name, layers[owner].weight)
    return layers


def tied_twice() -> list[nn.Module]:
    layers = shared(0, 3)
    layers[3].bias = nn.Parameter(torch.zeros(256))
    layers[0].register_parameter("bias", layers[3].bias)
    return layers


def frozen() -> list[nn.Module]:
    layers = ends(nn.Linear(8, 8))
    layers[1].requires_grad_(False)
    return layers


def twice() -> nn.Module:
    part = nn.Linear(8, 8)
    return nn.ModuleDict({"a": part, "b": part})


MADE_BEFORE = nn.Linear(8, 8)
ALLOWED = "only one parameter may be shared: one of the first layer, which the last layer uses once"

REFUSED: dict[str, tuple[object, str]] = {
    "no function": (None, "a_users_module has no function layers"),
    "not a list": (lambda: nn.Linear(1, 1), "must return a list of layers, not Linear"),
    "not a module": (lambda: [*ends(), 3], "layer 2 of .* is a int, not a torch.nn.Module"),
    "an exception": (lambda: 1 / 0, "a_users_module:layers failed: ZeroDivisionError: division"),
    "arguments": (lambda width: [width], r"model.arguments: .*missing a required argument"),
    "shared": (lambda: shared(1, 2), f"parameter as 1.weight and as 2.weight; {ALLOWED}"),
    "shared with the last": (lambda: shared(1, 3), f"1.weight and as 3.weight; {ALLOWED}"),
    "shared with the first": (lambda: shared(0, 2), f"0.weight and as 2.weight; {ALLOWED}"),
    "shared by three": (
        lambda: tied_and(0, "weight", 1),
        f"0.weight and as 1.weight and as 3.weight; {ALLOWED}",
    ),
    "twice in the last": (
        lambda: tied_and(0, "other", 3),
        f"0.weight and as 3.weight and as 3.other; {ALLOWED}",
    ),
    "two with the last": (tied_twice, f"0.bias and as 3.bias; {ALLOWED}"),
    "twice in the only layer": (lambda: [twice()], f"0.a.weight and as 0.b.weight; {ALLOWED}"),
    "frozen": (frozen, "layer 1 of .* has weight frozen"),
    "not float32": (lambda: ends(nn.Linear(8, 8).double()), "has weight of torch.float64"),
    "made before": (lambda: ends(MADE_BEFORE), "layer 1 of .* was made before"),
    "does not fit": (lambda: ends(nn.Linear(9, 8)), r"layer 1 of .* on \[2, 5, 8\] failed: Runt"),
    "a tuple": (lambda: ends(nn.LSTM(8, 8)), "layer 1 of .* must return one tensor, not tuple"),
    "without tokens": (lambda: ends(nn.Flatten(0, 1)), r"returned \[10, 8\]; the first sizes"),
    "counts": (lambda: ends(Counting()), "layer 1 of .* changes a buffer in forward"),
    "no gradient": (lambda: [nn.Identity(), *ends()], "layer 0 of .* must return torch.float32"),
}


@pytest.mark.parametrize(("function", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_model_that_cannot_be_trained_is_refused_by_name(
    define: Define, function: object, message: str
) -> None:
    with pytest.raises(ImportedModelError, match=message):
        output_shapes(import_model(define(function), {}), (2, 5))


def test_a_missing_module_is_distinguished_from_a_broken_one(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ImportedModelError, match=r"there is no module nowhere\.at_all"):
        import_model("nowhere.at_all:layers", {})
    folder = tmp_path_factory.mktemp("modules")
    (folder / "broken_model.py").write_text("import nowhere\n")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(ImportedModelError, match="importing broken_model failed: ModuleNotFound"):
        import_model("broken_model:layers", {})
