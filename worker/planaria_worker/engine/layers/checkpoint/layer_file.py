"""The file of one layer: safetensors, hashed while it is written and before it is read."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from planaria_worker.engine.layers.checkpoint.errors import CheckpointError, cannot_write
from planaria_worker.engine.layers.checkpoint.manifest import LayerEntry
from planaria_worker.engine.layers.copy.wire import chunks

_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
_READ_BYTES = 4 << 20


class MissingLayerError(CheckpointError):
    """The file of a layer is missing."""


def write_layer(
    path: Path, layer: int, tensors: Mapping[str, Tensor], *, suffix: str
) -> LayerEntry:
    """Write a layer's file; it gets its name only when it is complete and on the disk.

    Args:
        path: the file; one that is there is replaced.
        layer: its number.
        tensors: parameters and optimizer state by `slot/name`, on the CPU.
        suffix: tells this writer's file from another's of the same name while it is not whole.

    Raises:
        CheckpointError: the file cannot be written.
    """
    partial = path.with_name(f".{path.name}-{suffix}")
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with partial.open("wb") as file:
            for piece in _pieces(tensors):
                digest.update(piece)
                num_bytes += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise cannot_write(path, error) from error
    return LayerEntry(layer=layer, num_bytes=num_bytes, sha256=digest.hexdigest())


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify_layer(path: Path, entry: LayerEntry) -> None:
    """Compare a file with its manifest entry.

    Raises:
        CheckpointError: it is missing, of another size, or has other contents.
    """
    digest = hashlib.sha256()
    try:
        _check_size(path, entry, path.stat().st_size)
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
    except OSError as error:
        raise _unreadable(path, entry, error) from None
    _check_digest(path, entry, digest.hexdigest())


def read_layer(path: Path, entry: LayerEntry) -> dict[str, Tensor]:
    """Read a layer's tensors, if the file agrees with its manifest entry.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, entry, error) from None
    _check_size(path, entry, len(data))
    _check_digest(path, entry, hashlib.sha256(data).hexdigest())
    try:
        tensors: dict[str, Tensor] = load(data)
        return tensors
    except (SafetensorError, ValueError) as error:
        raise _wrong(path, entry.layer, f"is not safetensors: {error}") from None


def check_header(path: Path, entry: LayerEntry, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a file has the tensors of a model's layer, without reading their values.

    Args:
        path: the file.
        entry: what the manifest says of it.
        shapes: of the model's tensors by `slot/name`.

    Raises:
        CheckpointError: it is missing or torn, or a tensor is missing or of another shape or type.
    """
    try:
        _check_size(path, entry, path.stat().st_size)
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            for name, shape in shapes.items():
                if name not in names:
                    raise _wrong(path, entry.layer, f"has no tensor {name}")
                found = file.get_slice(name)
                if tuple(found.get_shape()) != shape:
                    detail = f"{name} of shape {tuple(found.get_shape())}, the model {shape}"
                    raise _wrong(path, entry.layer, f"has {detail}")
                if found.get_dtype() != "F32":
                    raise _wrong(
                        path, entry.layer, f"has {name} of type {found.get_dtype()}, not F32"
                    )
    except OSError as error:
        raise _unreadable(path, entry, error) from None
    except SafetensorError as error:
        raise _wrong(path, entry.layer, f"is not safetensors: {error}") from None
    if names - shapes.keys():
        extra = min(names - shapes.keys())
        raise _wrong(path, entry.layer, f"has {extra}, and the model has no such tensor")


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The header, its length first and padded to 8 bytes, then the tensors' raw bytes."""
    entries: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield from chunks(tensor)


def _check_size(path: Path, entry: LayerEntry, num_bytes: int) -> None:
    if num_bytes != entry.num_bytes:
        detail = f"has {num_bytes} bytes and should have {entry.num_bytes}: it is torn"
        raise _wrong(path, entry.layer, detail)


def _check_digest(path: Path, entry: LayerEntry, sha256: str) -> None:
    if sha256 != entry.sha256:
        raise _wrong(path, entry.layer, "is damaged: its SHA-256 is not the one recorded")


def _unreadable(path: Path, entry: LayerEntry, error: OSError) -> CheckpointError:
    if isinstance(error, FileNotFoundError):
        return MissingLayerError(
            f"layer {entry.layer}: {path} is missing", path=path, layer=entry.layer
        )
    return _wrong(path, entry.layer, f"cannot be read: {error.strerror}")


def _wrong(path: Path, layer: int, detail: str) -> CheckpointError:
    return CheckpointError(f"layer {layer}: {path} {detail}", path=path, layer=layer)
