"""A user's own model: a list of layers that a function returns, named by import path.

    def layers(width: int) -> list[nn.Module]:
        return [nn.Embedding(256, width), nn.Linear(width, width), nn.Linear(width, 256)]

    model = import_model("my_model:layers", {"width": 64})

Their parameters have the names that they have in `nn.Sequential(*layers(...))`. One parameter of
the first layer may be the last layer's too: a tied weight, as in the built-in families.

Parameters never exist but on `meta` until a layer's state is made: every engine builds the whole
list and holds what it hosts. Buffers are constants, and made as the function makes them.
"""

import copy
import hashlib
import importlib
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from planaria_worker.engine.numerics.rng import derive_seed
from planaria_worker.models.initialize import initial_tensor
from planaria_worker.models.layer import Layer, TiedWeight, replace_parameter

INITIAL_DEVIATION = 0.02
"""Of the matrices of modules without `reset_parameters`."""


class ImportedModelError(ValueError):
    """`model.import_path` cannot be used; one line that says what is wrong."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ImportedModel:
    """Layers of the user's, each a template with its parameters on `meta`."""

    layers: tuple[nn.Module, ...]
    import_path: str
    device: torch.device
    dtype: torch.dtype
    """Of hidden states, and of buffers of floats."""
    source_digest: str
    """SHA-256 of the file of the function's module, in hexadecimal."""
    tied: TiedWeight | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def has_dropout(self) -> bool:
        """Any layer may draw random numbers."""
        return True

    def kind_of(self, layer: int) -> Hashable:
        """By `repr`, to which a module adds with `extra_repr`, and the shapes of parameters."""
        module = self.layers[layer]
        shapes = tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
        return type(module), repr(module), shapes

    def output_shape(self, layer: int, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Finds out by running the layer.

        Raises:
            ImportedModelError: the layer fails, or breaks the contract of layers.
        """
        try:
            return self._try(layer, input_shape)
        except ImportedModelError:
            raise
        except Exception as error:  # whatever the user's code raises
            raise _failed(f"{self._name(layer)} on {list(input_shape)}", error) from error

    def _try(self, layer: int, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        built = self.build_layer(layer)
        for path, module in built.parts.items():
            values = self._initial_values(layer, seed=0)
            for name, _ in list(module.named_parameters()):
                value = values[f"{path}.{name}"].to(self.device, self.dtype)
                replace_parameter(module, name, nn.Parameter(value))
        versions = [b._version for module in built.parts.values() for b in module.buffers()]
        is_first, is_last = layer == 0, layer == self.num_layers - 1
        inputs = torch.zeros(
            input_shape,
            dtype=torch.int64 if is_first else self.dtype,
            device=self.device,
            requires_grad=not is_first,
        )
        with torch.random.fork_rng(devices=()):
            outputs: object = built.run(inputs)
        after = [b._version for module in built.parts.values() for b in module.buffers()]
        problem = self._output_problem(outputs, input_shape, is_last=is_last)
        if not problem and after != versions:
            problem = "changes a buffer in forward; what training changes must be a parameter"
        if problem or not isinstance(outputs, Tensor):
            raise ImportedModelError(f"model.import_path: {self._name(layer)} {problem}")
        return tuple(outputs.shape)

    def _output_problem(
        self, outputs: object, input_shape: tuple[int, ...], *, is_last: bool
    ) -> str:
        if not isinstance(outputs, Tensor):
            return f"must return one tensor, not {type(outputs).__name__}"
        if outputs.dtype != self.dtype:
            return f"must return {self.dtype}, which training computes with, not {outputs.dtype}"
        wanted = input_shape[:2] if is_last else input_shape[:1]
        if tuple(outputs.shape[: len(wanted)]) != wanted or outputs.dim() < 2:
            return f"returned {list(outputs.shape)}; the first sizes must be {list(wanted)}"
        if is_last and outputs.dim() != 3:
            return f"returned {list(outputs.shape)}, not logits [batch, sequence, vocabulary]"
        if not outputs.requires_grad:
            return "returned what no gradient can flow through; the first layer needs parameters"
        return ""

    def _name(self, layer: int) -> str:
        return f"layer {layer} of {self.import_path}"

    def build_layer(self, layer: int) -> Layer:
        module = copy.deepcopy(self.layers[layer])
        for part in module.modules():
            for name, buffer in part.named_buffers(recurse=False):
                dtype = self.dtype if buffer.is_floating_point() else buffer.dtype
                setattr(part, name, buffer.to(self.device, dtype))
        return Layer(parts={str(layer): module}, run=module)

    def initial_parameters(self, layer: int, seed: int) -> dict[str, Tensor]:
        """As torch's deferred initialisation has it: by `reset_parameters` of every module.

        A module's own comes after those of its parts, so that it may set them otherwise. What no
        module sets begins like the parameters of the built-in families. Random numbers follow from
        the seed, the layer and the module's name. A tied weight begins as the first layer has it.
        """
        values = self._initial_values(layer, seed)
        if self.tied is not None and layer == self.tied.user_layer:
            del values[self.tied.user_name]
        return values

    def _initial_values(self, layer: int, seed: int) -> dict[str, Tensor]:
        """With a value in the place of a tied weight: `reset_parameters` may look at it."""
        path = str(layer)
        module = copy.deepcopy(self.layers[layer])
        for name, old in list(module.named_parameters()):
            value = initial_tensor(seed, f"{path}.{name}", tuple(old.shape), INITIAL_DEVIATION)
            replace_parameter(module, name, nn.Parameter(value))
        with torch.random.fork_rng(devices=()), torch.no_grad():
            for name, part in reversed(list(module.named_modules())):
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    torch.manual_seed(derive_seed(seed, "init", path, name))
                    reset()
        return {f"{path}.{name}": value.detach() for name, value in module.named_parameters()}


def import_model(
    import_path: str,
    arguments: Mapping[str, Any],
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> ImportedModel:
    """Imports a function, calls it and checks that what it returns can be trained.

    Args:
        import_path: `module:function`.
        arguments: of the function, by name.
        seed: of what the function draws for its buffers.
        device: where layers run.
        dtype: of hidden states.

    Raises:
        ImportedModelError: there is no such function, it fails, or its layers cannot be used.
    """
    module_name, _, function_name = import_path.partition(":")
    module = _import(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ImportedModelError(
            f"model.import_path: {module_name} has no function {function_name}"
        )
    layers = _call(function, import_path, arguments, seed)
    for layer, one in enumerate(layers):
        for problem in _problems(one):
            raise ImportedModelError(f"model.import_path: layer {layer} of {import_path} {problem}")
    return ImportedModel(
        layers=tuple(layers),
        import_path=import_path,
        device=torch.device(device),
        dtype=dtype,
        source_digest=_source_digest(module),
        tied=_find_tied(layers, import_path),
    )


def _import(name: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ImportedModelError(
                f"model.import_path: there is no module {name}; "
                "it must be on the PYTHONPATH of the node's planaria-worker"
            ) from None
        raise _failed(f"importing {name}", error) from error
    except Exception as error:  # whatever the user's code raises
        raise _failed(f"importing {name}", error) from error


def _call(
    function: Any, import_path: str, arguments: Mapping[str, Any], seed: int
) -> Sequence[nn.Module]:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ImportedModelError(f"model.arguments: {import_path}: {error}") from None
    handle = register_module_parameter_registration_hook(_ToMeta())  # type: ignore[arg-type]
    try:
        with torch.random.fork_rng(devices=()), _WithoutMetaDraws():
            torch.manual_seed(derive_seed(seed, "build"))
            layers = function(**arguments)
    except Exception as error:  # whatever the user's code raises
        raise _failed(import_path, error) from error
    finally:
        handle.remove()
    if not isinstance(layers, list | tuple | nn.ModuleList) or not len(layers):
        raise ImportedModelError(
            f"model.import_path: {import_path} must return a list of layers, "
            f"not {type(layers).__name__}"
        )
    return list(layers)


def _failed(what: str, error: Exception) -> ImportedModelError:
    line = f"{type(error).__name__}: {error}".partition("\n")[0]
    return ImportedModelError(f"model.import_path: {what} failed: {line}")


class _ToMeta:
    """Called by torch for each parameter that a module is given: keeps its shape alone.

    A parameter that is given to two modules stays one.
    """

    def __init__(self) -> None:
        self._replaced = WeakTensorKeyDictionary()

    def __call__(self, module: nn.Module, name: str, parameter: object) -> nn.Parameter | None:  # noqa: ARG002
        if not isinstance(parameter, nn.Parameter) or parameter.is_meta:
            return None
        if parameter not in self._replaced:
            shape = parameter.to("meta")
            self._replaced[parameter] = nn.Parameter(shape, requires_grad=parameter.requires_grad)
        replacement: nn.Parameter = self._replaced[parameter]
        return replacement


class _WithoutMetaDraws(TorchFunctionMode):
    """Draws no normal numbers for a parameter that has no memory to keep them.

    Torch would draw none either, but import its compiler for it, which takes a second.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in (nn.init.normal_, Tensor.normal_):
            tensor = args[0] if args else (kwargs or {}).get("tensor")
            if isinstance(tensor, Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **(kwargs or {}))


def _problems(layer: object) -> Iterator[str]:
    if not isinstance(layer, nn.Module):
        yield f"is a {type(layer).__name__}, not a torch.nn.Module"
        return
    for name, parameter in layer.named_parameters():
        if not parameter.is_meta:
            yield f"was made before the function was called: {name} holds values already"
        if parameter.dtype != torch.float32:
            yield f"has {name} of {parameter.dtype}; parameters are float32 (see training.dtype)"
        if not parameter.requires_grad:
            yield f"has {name} frozen; make it a buffer, which is a constant"


def _find_tied(layers: Sequence[nn.Module], import_path: str) -> TiedWeight | None:
    """The parameter that the last layer shares with the first; any other sharing is refused."""
    uses: dict[int, list[tuple[int, str]]] = {}
    for layer, module in enumerate(layers):
        for name, parameter in module.named_parameters(remove_duplicate=False):
            uses.setdefault(id(parameter), []).append((layer, f"{layer}.{name}"))
    last = len(layers) - 1
    tied = None
    for shared in (places for places in uses.values() if len(places) > 1):
        if tied is not None or last == 0 or [layer for layer, _ in shared] != [0, last]:
            raise ImportedModelError(
                f"model.import_path: {import_path} uses one parameter as "
                f"{' and as '.join(name for _, name in shared)}; only one parameter may be shared: "
                "one of the first layer, which the last layer uses once"
            )
        (_, owner_name), (_, user_name) = shared
        tied = TiedWeight(
            owner_layer=0, owner_name=owner_name, user_layer=last, user_name=user_name
        )
    return tied


def _source_digest(module: ModuleType) -> str:
    """A module without a file (built in) has nothing to differ in."""
    file = getattr(module, "__file__", None)
    return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
