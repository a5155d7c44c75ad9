"""What an engine does with whole layers while training continues: obtain, digest, export.

Each such directive has a thread of its own, so that a source that does not answer delays nothing
else, and a newer generation does not wait for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from planaria_common.errors import ErrorReason, PlanariaError, invalid
from planaria_common.model_config import ModelConfig
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.copy import LayerFetcher
from planaria_worker.engine.layers.export import ExportError, export_huggingface, export_safetensors
from planaria_worker.engine.layers.initial_state import InitialState, initial_layers
from planaria_worker.engine.layers.layer_store import LayerStore, fill
from planaria_worker.engine.numerics.digest import layer_digest
from planaria_worker.models.state import LayerState, empty_state

Sources = Mapping[int, Sequence[str]]
"""Data addresses by layer, the preferred one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedLayers:
    """Layers that an engine needs in one version, by where they come from."""

    version: int
    initial: Sequence[int] = ()
    """From the job's initial state: no engine has trained them yet."""
    copied: Sources = field(default_factory=dict)
    """From engines that hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTasks:
    """Obtains, digests and exports layers for one engine."""

    job: Job
    initial_state: InitialState
    store: LayerStore
    fence: Fence

    def obtain(self, wanted: WantedLayers, *, generation: int, fetcher: LayerFetcher) -> int:
        """Copy layers from other engines, take others from the initial state, and install them.

        They become visible together, when all are complete, unless a newer generation has been
        seen. Returns the bytes received from other engines.

        Raises:
            PlanariaError: COPY_FAILED; the initial state cannot be used; or it is of another
                version.
            CopyInterrupted: the fetcher was interrupted.
            StaleGenerationError: a newer generation has been seen.
        """
        states = initial_layers(self.initial_state, wanted.initial, wanted.version)
        fetched = fetcher.fetch_all(wanted.copied, wanted.version)
        num_bytes = sum(each.nbytes for layer in fetched.values() for each in layer.values())
        for layer in list(fetched):
            states[layer] = self._state(layer, fetched.pop(layer))
        self.fence.install(generation, lambda: self.store.install(states, wanted.version))
        return num_bytes

    def digest(self, layers: Iterable[int]) -> tuple[dict[int, bytes], int]:
        """Return the SHA-256 of each layer's parameters, and the version that all have.

        Raises:
            PlanariaError: a layer is not held, or the layers are of several versions.
        """
        versions = {layer: self.store.version(layer) for layer in layers}
        if len(set(versions.values())) != 1 or None in versions.values():
            raise PlanariaError(
                ErrorReason.WRONG_STATE,
                f"layers must be held in one version; versions by layer are {versions}",
                {"layers": ", ".join(map(str, versions))},
            )
        digests = {layer: layer_digest(self._parameters(layer)) for layer in versions}
        return digests, versions.popitem()[1] or 0

    def export(
        self,
        path: Path,
        sources: Sources,
        *,
        model_format: str,
        version: int,
        fetcher: LayerFetcher,
    ) -> int:
        """Write the model, with the layers of other engines fetched one by one; return its bytes.

        Raises:
            PlanariaError: OUTPUT_FAILED, COPY_FAILED; this engine does not hold a layer that has no
                source; or the model cannot be written in this format.
        """
        layers = self._gather(sources, version, fetcher)
        try:
            match model_format, self.job.model_config:
                case "huggingface", ModelConfig() as config:
                    export_huggingface(path, config, layers)
                case "safetensors", _:
                    export_safetensors(path, self.job.model, layers)
                case _:
                    problem = f"this model cannot be written as {model_format!r}"
                    raise invalid("output.format", problem)
            return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        except ExportError as error:
            raise PlanariaError(
                ErrorReason.OUTPUT_FAILED,
                str(error),
                {"path": str(path), "detail": str(error)},
            ) from None

    def _gather(
        self, sources: Sources, version: int, fetcher: LayerFetcher
    ) -> Iterator[tuple[int, Mapping[str, Tensor]]]:
        for layer, addresses in sources.items():
            if addresses:
                tensors = fetcher.fetch(layer, version, addresses)
                state = self._state(layer, tensors)
                yield layer, state.layout.views(state.parameters)
            elif self.store.version(layer) == version:
                yield layer, self._parameters(layer)
            else:
                raise PlanariaError(
                    ErrorReason.WRONG_STATE,
                    f"layer {layer} is not held in version {version}, and has no source",
                    {"layers": str(layer), "version": str(version)},
                )

    def _parameters(self, layer: int) -> dict[str, Tensor]:
        state = self.store.states[layer]
        return state.layout.views(state.parameters)

    def _state(self, layer: int, tensors: Mapping[str, Tensor]) -> LayerState:
        state = empty_state(
            self.job.layouts[layer],
            device=str(self.job.device),
            compute_dtype=self.job.compute_dtype,
        )
        fill(state, tensors)
        return state
