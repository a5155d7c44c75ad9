"""Random plans and small helpers for the engine's unit tests."""

from collections.abc import Sequence

from hypothesis import strategies as st

from planaria_worker.engine.plan.owned_layers import HostedLayers
from planaria_worker.engine.plan.plan import PipelineAssignment, StageAssignment


def untied(first_layer: int, num_layers: int) -> Sequence[int]:
    return range(first_layer, first_layer + num_layers)


def tied(model_layers: int) -> HostedLayers:
    """The last layer of `model_layers` uses a parameter of the first."""

    def hosted(first_layer: int, num_layers: int) -> Sequence[int]:
        own = tuple(range(first_layer, first_layer + num_layers))
        return own if 0 in own or model_layers - 1 not in own else (0, *own)

    return hosted


def pipeline(index: int, cuts: Sequence[int], microbatches: Sequence[int]) -> PipelineAssignment:
    """A pipeline whose stages begin at 0 and at the cuts; the last cut is the number of layers."""
    starts = [0, *cuts[:-1]]
    return PipelineAssignment(
        stages=tuple(
            StageAssignment(
                engine_id=f"{index}.{stage}",
                data_address=f"127.0.0.1:{1000 * (index + 1) + stage}",
                first_layer=first,
                num_layers=end - first,
            )
            for stage, (first, end) in enumerate(zip(starts, cuts, strict=True))
        ),
        microbatches=tuple(microbatches),
    )


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[PipelineAssignment], int, int]:
    """Pipelines, number of layers, number of microbatches."""
    num_layers = draw(st.integers(1, 9))
    num_pipelines = draw(st.integers(1, 4))
    num_microbatches = draw(st.integers(num_pipelines, 12))
    owners = draw(st.permutations(range(num_microbatches)))
    bounds = sorted(
        draw(
            st.lists(
                st.integers(1, num_microbatches - 1),
                min_size=num_pipelines - 1,
                max_size=num_pipelines - 1,
                unique=True,
            )
            if num_pipelines > 1
            else st.just([])
        )
    )
    parts = [
        owners[start:end] for start, end in zip([0, *bounds], [*bounds, len(owners)], strict=True)
    ]
    pipelines = []
    for index, part in enumerate(parts):
        cuts = draw(st.sets(st.integers(1, num_layers), max_size=5))
        pipelines.append(pipeline(index, [*sorted(cuts - {num_layers}), num_layers], part))
    return pipelines, num_layers, num_microbatches
