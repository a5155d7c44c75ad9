"""A stage: consecutive layers as one module, computing on the states it is given.

    states = {layer: initial_state(model, layer, seed=7) for layer in hosted_layers(model, 0, 3)}
    stage = build_stage(model, 0, 3, states)
    hidden = stage(token_ids)

The stage holds no state of its own: its parameters are views of the LayerStates, so a survivor that
gets another stage passes on the states it keeps and pays for nothing else.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from planaria_worker.engine.numerics.rng import derive_seed, seed_generators
from planaria_worker.models.layer import Layer, Model, replace_parameter
from planaria_worker.models.state import LayerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One use of a parameter: a leaf of the autograd graph, whose gradient belongs to `layer`.

    A tied parameter has two, each with a gradient of its own.
    """

    layer: int
    name: str
    parameter: nn.Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Which microbatch is computed; only dropout depends on it."""

    step: int
    index: int


def hosted_layers(model: Model, first_layer: int, num_layers: int) -> tuple[int, ...]:
    """The layers whose state a stage needs: its own, and the owner of a weight tied to one of them.

    A stage with the head of a model with tied embeddings is a full replica of layer 0 too: it joins
    that layer's gradient sum (with the head's use), updates it and can be copied from.
    """
    own = range(first_layer, first_layer + num_layers)
    tied = model.tied
    if tied is not None and tied.user_layer in own and tied.owner_layer not in own:
        return (tied.owner_layer, *own)
    return tuple(own)


class Stage(nn.Module):
    """Layers first_layer .. first_layer + num_layers - 1; built by `build_stage`.

    Attributes:
        layers: for each own layer, its parameters by their names in the whole model.
        leaves: every use of every parameter, in layer order.
        states: the state of each hosted layer.
    """

    def __init__(
        self,
        model: Model,
        first_layer: int,
        num_layers: int,
        states: Mapping[int, LayerState],
        *,
        seed: int,
        activation_checkpointing: bool,
    ) -> None:
        super().__init__()
        self.first_layer = first_layer
        self.num_layers = num_layers
        self.is_first = first_layer == 0
        self.is_last = first_layer + num_layers == model.num_layers
        self.states = {
            layer: states[layer] for layer in hosted_layers(model, first_layer, num_layers)
        }
        self.layers: dict[int, dict[str, nn.Parameter]] = {}
        self.leaves: tuple[Leaf, ...] = ()
        self._seed = seed
        self._has_dropout = model.has_dropout
        self._activation_checkpointing = activation_checkpointing
        self._num_model_layers = model.num_layers
        self._built: dict[int, Layer] = {}
        for layer in range(first_layer, first_layer + num_layers):
            self._add(model, layer)

    def forward(
        self,
        inputs: Tensor,
        microbatch: Microbatch | None = None,
        before_layer: Callable[[], None] | None = None,
    ) -> Tensor:
        """Runs the layers.

        Args:
            inputs: token ids [batch, sequence] (int64) on the first stage, else hidden states
                [batch, sequence, hidden].
            microbatch: needed if the model has dropout.
            before_layer: called before each layer; may raise, to end the pass.

        Returns:
            Hidden states [batch, sequence, hidden], or logits [batch, sequence, vocabulary] on the
            last stage.
        """
        if self._has_dropout and self.training and microbatch is None:
            raise ValueError("a model with dropout needs to know which microbatch it computes")
        outputs = inputs
        for layer in self._built:
            if before_layer is not None:
                before_layer()
            outputs = self._run(layer, outputs, microbatch)
        return outputs

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Without dropout, and without a graph; what was in eval mode before stays in it."""
        training = [module for module in self.modules() if module.training]
        for module in training:
            module.training = False
        try:
            with torch.no_grad():
                yield
        finally:
            for module in training:
                module.training = True

    def _run(self, layer: int, inputs: Tensor, microbatch: Microbatch | None) -> Tensor:
        is_block = 0 < layer < self._num_model_layers - 1
        if not (self._activation_checkpointing and is_block and torch.is_grad_enabled()):
            return self._run_layer(layer, inputs, microbatch)
        outputs: Tensor = checkpoint(
            self._run_layer,
            layer,
            inputs,
            microbatch,
            use_reentrant=False,
            preserve_rng_state=False,  # _run_layer seeds, in the recomputation as well
        )
        return outputs

    def _run_layer(self, layer: int, inputs: Tensor, microbatch: Microbatch | None) -> Tensor:
        if self._has_dropout and microbatch is not None:
            path = ("dropout", microbatch.step, microbatch.index, layer)
            seed_generators(derive_seed(self._seed, *path), inputs.device)
        return self._built[layer].run(inputs)

    def _add(self, model: Model, layer: int) -> None:
        """Builds a layer, points its parameters at its state, and registers it by its names."""
        built = model.build_layer(layer)
        tied = model.tied
        self.layers[layer] = {}
        leaves = []
        for path, module in built.parts.items():
            for name, old in list(module.named_parameters()):
                owner, tensor_name = layer, f"{path}.{name}"
                if tied is not None and (layer, tensor_name) == (tied.user_layer, tied.user_name):
                    owner, tensor_name = tied.owner_layer, tied.owner_name
                state = self.states[owner]
                values = state.layout[tensor_name].view(state.compute)
                parameter = nn.Parameter(values, requires_grad=old.requires_grad)
                replace_parameter(module, name, parameter)
                self.layers[layer][f"{path}.{name}"] = parameter
                leaves.append(Leaf(layer=owner, name=tensor_name, parameter=parameter))
            _attach(self, path, module)
        self.leaves += tuple(leaves)
        self._built[layer] = built


def build_stage(
    model: Model,
    first_layer: int,
    num_layers: int,
    states: Mapping[int, LayerState],
    *,
    seed: int = 0,
    activation_checkpointing: bool = False,
) -> Stage:
    """A stage on the given states.

    `states` has at least those of `hosted_layers`; they are shared with the stage, not copied.
    `seed` is the job's, for dropout. With `activation_checkpointing` only the blocks' inputs are
    kept, and the blocks computed again in the backward pass; the gradients are bitwise the same.

    Raises:
        ValueError: the layers are not all in the model, or a state is missing.
    """
    if num_layers < 1 or first_layer < 0 or first_layer + num_layers > model.num_layers:
        raise ValueError(
            f"layers {first_layer}..{first_layer + num_layers - 1} are not all in "
            f"0..{model.num_layers - 1}"
        )
    missing = [
        layer for layer in hosted_layers(model, first_layer, num_layers) if layer not in states
    ]
    if missing:
        raise ValueError(f"no state for layers {missing}")
    return Stage(
        model,
        first_layer,
        num_layers,
        states,
        seed=seed,
        activation_checkpointing=activation_checkpointing,
    )


def _attach(root: nn.Module, path: str, module: nn.Module) -> None:
    """Registers a module under a dotted path, with empty containers on the way."""
    *containers, leaf_name = path.split(".")
    for name in containers:
        if name not in root._modules:
            root.add_module(name, nn.Module())
        root = root.get_submodule(name)
    root.add_module(leaf_name, module)
