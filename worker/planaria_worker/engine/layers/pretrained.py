"""Parameters to start from: a Hugging Face folder of safetensors, read one layer at a time."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from torch import Tensor

from planaria_worker.models.layer import Model
from planaria_worker.models.layout import TensorLayout, layer_layout

_WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


class PretrainedError(ValueError):
    """`init_from` cannot be used; one line that names the place and what is wrong."""


def is_pretrained(folder: Path) -> bool:
    """Whether a folder looks like one of Hugging Face safetensors."""
    return any((folder / name).is_file() for name in (_WEIGHTS_FILE, _INDEX_FILE))


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedFolder:
    """The tensors of a folder, whichever files they are in."""

    folder: Path
    files: Mapping[str, str]
    """The file of each tensor."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the index, or the names in the only file.

        Raises:
            PretrainedError: there are no safetensors, or they cannot be read.
        """
        try:
            if (folder / _INDEX_FILE).is_file():
                index = json.loads((folder / _INDEX_FILE).read_text())
                return cls(folder=folder, files=index["weight_map"])
            with safe_open(folder / _WEIGHTS_FILE, framework="pt") as file:
                return cls(folder=folder, files=dict.fromkeys(file.keys(), _WEIGHTS_FILE))
        except FileNotFoundError as error:
            raise PretrainedError(
                f"init_from: {folder} has neither {_WEIGHTS_FILE} nor {_INDEX_FILE}"
            ) from error
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise PretrainedError(f"init_from: cannot read {folder}: {error}") from error

    def check(self, model: Model) -> None:
        """Check that all parameters of a model are there, without reading their values.

        Raises:
            PretrainedError: a parameter is missing or has another shape.
        """
        for layer in range(model.num_layers):
            for place in layer_layout(model, layer).tensors:
                _check_shape(place, self._shape(place.name))

    def content_sha256(self) -> bytes:
        """Of the names of the tensors' files and their contents: equal where the weights are.

        Raises:
            PretrainedError: a file cannot be read.
        """
        digest = hashlib.sha256()
        for name in sorted(set(self.files.values())):
            digest.update(name.encode())
            try:
                with (self.folder / name).open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise PretrainedError(
                    f"init_from: cannot read {self.folder / name}: {error.strerror}"
                ) from error
        return digest.digest()

    def read_layer(self, model: Model, layer: int) -> dict[str, Tensor]:
        """The parameters of one layer by name, as they are stored; models.state.filled_state
        takes them.

        Raises:
            PretrainedError: a parameter is missing or has another shape.
        """
        tensors = {}
        for place in layer_layout(model, layer).tensors:
            tensor = self._read(place.name)
            _check_shape(place, tuple(tensor.shape))
            tensors[place.name] = tensor
        return tensors

    def _read(self, name: str) -> Tensor:
        with self._opened(name) as (file, stored):
            tensor: Tensor = file.get_tensor(stored)
            return tensor

    def _shape(self, name: str) -> tuple[int, ...]:
        with self._opened(name) as (file, stored):
            return tuple(file.get_slice(stored).get_shape())

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[Any, str]]:
        """The file of a tensor, and the tensor's name in it."""
        # Folders saved from a bare body (openai's gpt2) lack the name of the body.
        stored = name if name in self.files else name.partition(".")[2]
        if stored not in self.files:
            raise PretrainedError(f"init_from: {self.folder} has no tensor {name}")
        try:
            with safe_open(self.folder / self.files[stored], framework="pt") as file:
                yield file, stored
        except (OSError, SafetensorError) as error:
            raise PretrainedError(f"init_from: cannot read {self.folder}: {error}") from error


def _check_shape(place: TensorLayout, shape: tuple[int, ...]) -> None:
    if shape != place.shape:
        raise PretrainedError(
            f"init_from: {place.name} has shape {shape}, the job's model has {place.shape}"
        )
