"""What an engine does with whole layers beside the training: obtain, digest, write.

Each directive of this kind has a thread of its own, so a source that does not answer holds up
nobody, and a newer generation need not wait for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.model_config import ModelConfig
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.copy import LayerFetcher
from planaria_worker.engine.layers.export import ExportError, export_huggingface, export_safetensors
from planaria_worker.engine.layers.initial_state import InitialState
from planaria_worker.engine.layers.layer_store import LayerStore, fill
from planaria_worker.engine.numerics.digest import layer_digest
from planaria_worker.engine.recovery.fence import Fence
from planaria_worker.models.state import LayerState, empty_state

Sources = Mapping[int, Sequence[str]]
"""Data addresses by layer, the preferred one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTasks:
    """Copy, digest and export for one engine."""

    job: Job
    base: InitialState
    store: LayerStore
    fence: Fence

    def copy(
        self, sources: Sources, *, version: int, generation: int, fetcher: LayerFetcher
    ) -> int:
        """Obtains layers in one version; those without an address are those of the job's base.

        They become visible together, when all are complete, unless a newer generation has been
        seen. Returns the bytes received.

        Raises:
            PlanariaError: COPY_FAILED; the base cannot be used; or a layer of the base is wanted in
                another version.
            CopyInterrupted: the fetcher was interrupted.
            StaleGenerationError: a newer generation has been seen.
        """
        initial = [layer for layer, addresses in sources.items() if not addresses]
        base = self.base.facts.step
        if initial and version != base:
            raise PlanariaError(
                ErrorReason.INVALID_ARGUMENT,
                f"layers {initial}: without an address only version {base} can be had, "
                f"not {version}",
                {"field": "addresses", "version": str(version)},
            )
        fetched = fetcher.fetch_all({x: a for x, a in sources.items() if a}, version)
        num_bytes = sum(layer.num_bytes for layer in fetched.values())
        states = {layer: self._state(layer, fetched.pop(layer).tensors) for layer in list(fetched)}
        for layer in initial:
            states[layer] = self.base.state(layer)
        self.fence.install(generation, lambda: self.store.install(states, version))
        return num_bytes

    def digest(self, layers: Iterable[int]) -> tuple[dict[int, bytes], int]:
        """SHA-256 of each layer's parameters, and the version that they all have.

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
        """Writes the model, with the layers of others fetched one by one; returns its bytes.

        Raises:
            PlanariaError: OUTPUT_FAILED, COPY_FAILED, or a layer is not where it should be; or the
                model cannot be written in this format.
        """
        layers = self._gather(sources, version, fetcher)
        try:
            match model_format, self.job.model_config:
                case "huggingface", ModelConfig() as config:
                    export_huggingface(path, config, layers)
                case "safetensors", _:
                    export_safetensors(path, self.job.model, layers)
                case _:
                    raise PlanariaError(
                        ErrorReason.INVALID_ARGUMENT,
                        f"output.format: this model cannot be written as {model_format!r}",
                        {"field": "output.format"},
                    )
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
                tensors = fetcher.fetch(layer, version, addresses).tensors
                state = self._state(layer, tensors)
                yield layer, state.layout.views(state.parameters)
            elif self.store.version(layer) == version:
                yield layer, self._parameters(layer)
            else:
                raise PlanariaError(
                    ErrorReason.WRONG_STATE,
                    f"layer {layer} is not held in version {version}, and has no address",
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
