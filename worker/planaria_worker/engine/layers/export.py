"""Writes a trained model: model.safetensors, and config.json where Hugging Face knows the model.

Layers may come one by one, in any order and from anywhere: no more than one is held in memory. The
file's header follows from the model alone, so every tensor's place is known before it arrives.
"""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from planaria_common.model_config import ModelConfig
from planaria_worker.models.layer import Model
from planaria_worker.models.layout import layer_layout

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"

_DTYPE = torch.float32
"""Of the trained parameters, whatever the compute type."""


class ExportError(OSError):
    """The model could not be written; one line that names the place and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a tensor's bytes go, from the start of the data."""

    layer: int
    shape: tuple[int, ...]
    start: int
    end: int


def export_huggingface(
    folder: Path,
    config: ModelConfig,
    layers: Iterable[tuple[int, Mapping[str, Tensor]]],
) -> None:
    """Write config.json and the weights, as transformers reads them.

    As export_safetensors otherwise.
    """
    from planaria_worker.models.transformer import huggingface_config, transformer

    written = huggingface_config(config)
    written.dtype = str(_DTYPE).removeprefix("torch.")
    _export(folder, transformer(config), layers, written.to_json_string(use_diff=True))


def export_safetensors(
    folder: Path,
    model: Model,
    layers: Iterable[tuple[int, Mapping[str, Tensor]]],
) -> None:
    """Write the weights to a temporary name and rename them when they are complete.

    `layers` gives each layer once, with its parameters by name (LayerState's `parameters`); a tied
    parameter is in its first layer. Values are float32. A folder that exists keeps its other files.

    Raises:
        ExportError: the folder cannot be written, for example because the disk is full.
        ValueError: a layer or a tensor is missing, or has another shape.
    """
    _export(folder, model, layers, None)


def _export(
    folder: Path,
    model: Model,
    layers: Iterable[tuple[int, Mapping[str, Tensor]]],
    config_json: str | None,
) -> None:
    folder = folder.absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        try:
            with (partial / WEIGHTS_FILE).open("wb") as file:
                _write_weights(file, model, layers)
                file.flush()
                os.fsync(file.fileno())
            if config_json is not None:
                (partial / CONFIG_FILE).write_text(config_json)
            _move(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        hint = "; free some space" if error.errno == errno.ENOSPC else ""
        raise ExportError(
            f"output.path: cannot write {folder}: {error.strerror or error}{hint}"
        ) from error


def _write_weights(
    file: BinaryIO,
    model: Model,
    layers: Iterable[tuple[int, Mapping[str, Tensor]]],
) -> None:
    places = _places(model)
    header = _header(places)
    file.write(header)
    missing = dict(places)
    for layer, tensors in layers:
        for name, tensor in tensors.items():
            place = missing.pop(name, None)
            if place is None or place.layer != layer or place.shape != tuple(tensor.shape):
                raise ValueError(f"layer {layer}: {name} {tuple(tensor.shape)} is not expected")
            file.seek(len(header) + place.start)
            values = tensor.detach().to("cpu", _DTYPE).contiguous().reshape(-1)
            file.write(values.view(torch.uint8).numpy().data)
    if missing:
        name, place = next(iter(missing.items()))
        raise ValueError(f"layer {place.layer}: {name} is missing")


def _places(model: Model) -> dict[str, _Place]:
    places = {}
    start = 0
    for layer in range(model.num_layers):
        for tensor in layer_layout(model, layer).tensors:
            end = start + tensor.num_elements * _DTYPE.itemsize
            places[tensor.name] = _Place(layer=layer, shape=tensor.shape, start=start, end=end)
            start = end
    return places


def _header(places: Mapping[str, _Place]) -> bytes:
    """The safetensors header: its length, then JSON padded with spaces to 8 bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for name, place in places.items():
        entries[name] = {
            "dtype": "F32",
            "shape": list(place.shape),
            "data_offsets": [place.start, place.end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _move(partial: Path, folder: Path) -> None:
    if not folder.exists():
        partial.chmod(0o755)  # mkdtemp's folders are private
        partial.rename(folder)
        return
    for file in partial.iterdir():
        file.replace(folder / file.name)
