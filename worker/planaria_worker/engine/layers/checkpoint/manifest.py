"""The manifest of a checkpoint: a folder with it is complete."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from planaria_worker.engine.layers.checkpoint.errors import CheckpointError
from planaria_worker.engine.layers.checkpoint.layout import MANIFEST_FILE

API_VERSION = "planaria.dev/v1"
KIND = "Checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEntry:
    """The file of one layer."""

    layer: int
    num_bytes: int
    sha256: str
    """Of the whole file, hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete checkpoint."""

    job_id: str
    job_digest: str
    """SHA-256 of the job file's canonical JSON."""
    step: int
    """Number of committed steps: the version of all layers."""
    num_tokens: int
    """Tokens seen in these steps."""
    seed: int
    data_digest: str
    model: dict[str, Any]
    """The model's configuration, completed with its defaults."""
    layers: tuple[LayerEntry, ...]

    def encode(self) -> bytes:
        """The file's contents: the same bytes for the same manifest."""
        document = {"api_version": API_VERSION, "kind": KIND, **asdict(self)}
        return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(self.encode()).digest()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder.

        Raises:
            CheckpointError: it is missing, damaged, or something else.
        """
        path = folder / MANIFEST_FILE
        try:
            document = json.loads(path.read_bytes())
            kind = (document.pop("api_version"), document.pop("kind"))
            layers = tuple(LayerEntry(**entry) for entry in document.pop("layers"))
            manifest = cls(**document, layers=layers)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}", path=path) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}", path=path) from None
        if kind != (API_VERSION, KIND):
            raise CheckpointError(
                f"{path} is a {kind[0]} {kind[1]}, not a {API_VERSION} {KIND}", path=path
            )
        return manifest
