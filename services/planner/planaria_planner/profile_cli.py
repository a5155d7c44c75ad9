"""`planaria profile`: a model's costs, measured here or worked out for hardware elsewhere.

The planner has the command since it owns the file's format and the cost model. Working a profile
out needs nothing but the base installation; measuring is the worker's, found by its entry point.
"""

import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Protocol, cast

import typer
from rich.console import Console

from planaria.job import ImportedSpec, JobSpec
from planaria.job_file import load_job_file
from planaria_common.errors import ErrorReason, InvalidArgumentError, PlanariaError, invalid
from planaria_common.measurement import PROFILERS, AcceleratorKind, Measurement, MeasurementPlan
from planaria_common.model_config import ModelConfig
from planaria_common.model_sizes import Dtype
from planaria_planner.cost.accelerators import find_accelerator
from planaria_planner.cost.analytic import Cluster, Efficiency, Workload, analytic_profile
from planaria_planner.cost.measured import check_step, measured_profile
from planaria_planner.cost.profile import ModelProfile
from planaria_planner.cost.profile_file import format_profile
from planaria_planner.display.profile_table import draw_measurement, draw_profile
from planaria_planner.display.progress_bar import progress_bar

USAGE_ERROR = 2
MIN_COLUMNS = 100
"""A table is not cut, however narrow the terminal or file."""

_MEASURING = ("device", "passes", "check_steps")
_ANALYTIC = ("huggingface", "microbatch_size", "sequence_length", "dtype", "efficiency")


class Profiler(Protocol):
    """The worker's part: measures a job's layers on this machine."""

    def __call__(
        self, spec: JobSpec, plan: MeasurementPlan, tell: Callable[[float], None]
    ) -> Measurement: ...


JobFile = Annotated[
    Path | None, typer.Argument(metavar="JOB.yaml", help="The job whose model it is.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="P.json", help="Write the profile.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the profile as JSON and nothing else.")]
AcceleratorsPerNode = Annotated[
    int | None,
    typer.Option(metavar="G", min=1, help="This machine's by default; with --accelerator, 8."),
]
InterNodeBandwidth = Annotated[
    float | None,
    typer.Option(metavar="B", help="What one accelerator gets of the network between nodes."),
]
Device = Annotated[
    AcceleratorKind | None, typer.Option(help="What to measure on; auto by default.")
]
Passes = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Measured passes of a layer; 10.")
]
CheckSteps = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Steps to check the cost model with; 5.")
]
AcceleratorName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Measure nothing: work it out for h100, a100-80, ..."),
]
HuggingFace = Annotated[
    Path | None,
    typer.Option(metavar="CONFIG.json", help="With --accelerator: a model without a job."),
]
MicrobatchSize = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="With --accelerator: not the job's.")
]
SequenceLength = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="With --accelerator: not the job's.")
]
ComputeDtype = Annotated[
    Dtype | None, typer.Option(help="With --accelerator: compute in this type.")
]
EfficiencyParts = Annotated[
    str | None,
    typer.Option(
        metavar="compute=C,memory=M,link=L",
        help="With --accelerator: parts of its peaks; compute=0.5,memory=0.8,link=0.8.",
    ),
]


def profile(
    context: typer.Context,
    job: JobFile = None,
    output: Output = None,
    as_json: AsJson = False,
    accelerators_per_node: AcceleratorsPerNode = None,
    inter_node_bytes_per_second: InterNodeBandwidth = None,
    device: Device = None,
    passes: Passes = None,
    check_steps: CheckSteps = None,
    accelerator: AcceleratorName = None,
    huggingface: HuggingFace = None,
    microbatch_size: MicrobatchSize = None,
    sequence_length: SequenceLength = None,
    dtype: ComputeDtype = None,
    efficiency: EfficiencyParts = None,
) -> None:
    """Measure a model's layers on this hardware, or work them out from a data sheet."""
    out = Console(highlight=False, markup=False, soft_wrap=True, quiet=as_json)
    out.width = max(out.width, MIN_COLUMNS)
    try:
        if accelerator is None:
            _refuse(context.params, _ANALYTIC, "needs --accelerator NAME")
            plan = MeasurementPlan(
                **_given(accelerator_kind=device, num_passes=passes, num_steps=check_steps)
            )
            made = _measure(job, plan, accelerators_per_node, inter_node_bytes_per_second, out)
        else:
            _refuse(context.params, _MEASURING, "is for measuring, not for --accelerator")
            found = find_accelerator(accelerator)
            cluster = Cluster(
                accelerator=found,
                accelerators_per_node=accelerators_per_node or found.accelerators_per_node,
                inter_node_bytes_per_second=inter_node_bytes_per_second,
                efficiency=parse_efficiency(efficiency or ""),
            )
            overrides = _given(
                microbatch_size=microbatch_size, sequence_length=sequence_length, dtype=dtype
            )
            made = _work_out(_workload(job, huggingface, overrides), cluster, out)
        _write(made, output, as_json=as_json)
    except PlanariaError as error:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(USAGE_ERROR if isinstance(error, InvalidArgumentError) else 1) from None


def parse_efficiency(text: str) -> Efficiency:
    """Read `compute=0.5,link=0.9`; what is not named keeps its default.

    Raises:
        PlanariaError: INVALID_ARGUMENT.
    """
    parts: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.strip().partition("=")
        try:
            parts[name] = float(number)
        except ValueError:
            raise invalid("--efficiency", f"{part!r} is not NAME=PART") from None
        if name not in Efficiency.__dataclass_fields__:
            raise invalid("--efficiency", f"unknown part {name!r}; known: compute, memory, link")
    return Efficiency(**parts)


def _measure(
    job: Path | None,
    plan: MeasurementPlan,
    accelerators_per_node: int | None,
    inter_node_bytes_per_second: float | None,
    out: Console,
) -> ModelProfile:
    if job is None:
        raise invalid("JOB.yaml", "missing; name a job file, or work out with --accelerator NAME")
    spec = load_job_file(job)
    done = [0.0]
    with progress_bar("measuring", lambda: done[-1]):
        measurement = _find_profiler()(spec, plan, done.append)
    made = measured_profile(
        measurement,
        microbatch_size=spec.training.microbatch_size,
        accelerators_per_node=accelerators_per_node,
        inter_node_bytes_per_second=inter_node_bytes_per_second,
    )
    spreads = {
        layer.name: (layer.forward.spread, layer.backward.spread) for layer in measurement.layers
    }
    draw_profile(made, spreads, out)
    draw_measurement(
        measurement,
        check_step(made, measurement),
        inter_node_is_given=inter_node_bytes_per_second is not None,
        out=out,
    )
    return made


def _find_profiler() -> Profiler:
    try:
        (point,) = entry_points(group=PROFILERS, name="measure")
        return cast(Profiler, point.load())
    except (ImportError, ValueError):
        raise PlanariaError(
            ErrorReason.UNAVAILABLE,
            "measuring needs the worker: pip install 'planaria[worker]'; without it, --accelerator"
            " NAME works a profile out",
            {"part": "worker"},
        ) from None


def _work_out(workload: Workload, cluster: Cluster, out: Console) -> ModelProfile:
    made = analytic_profile(workload, cluster)
    draw_profile(made, {}, out)
    efficiency = cluster.efficiency
    out.print(
        f"worked out, not measured: {cluster.accelerator.name} in {workload.dtype}, at"
        f" {efficiency.compute:.0%} of its FLOP/s, {efficiency.memory:.0%} of its memory's and"
        f" {efficiency.link:.0%} of its links' bandwidth; change them with --efficiency"
    )
    return made


def _workload(job: Path | None, huggingface: Path | None, overrides: Mapping[str, Any]) -> Workload:
    """Return what a job file or a Hugging Face configuration describes."""
    if (job is None) == (huggingface is None):
        raise invalid("JOB.yaml", "name a job file or --huggingface CONFIG.json, one of them")
    if huggingface is not None:
        if "sequence_length" not in overrides:
            raise invalid("--sequence-length", "missing; --huggingface needs it")
        config = _read_huggingface(huggingface)
        return Workload(config=config, **{"microbatch_size": 1, **overrides})
    spec = load_job_file(cast(Path, job))
    fields = {
        "microbatch_size": spec.training.microbatch_size,
        "sequence_length": spec.data.sequence_length,
        "dtype": spec.training.dtype,
        "reproducible": spec.training.reproducible,
    }
    if isinstance(spec.model, ImportedSpec):
        raise invalid(str(job), "model.import_path: the engines measure such a model themselves")
    try:
        config = ModelConfig.from_job_file(spec.model.model_dump())
    except ValueError as error:
        raise invalid(str(job), str(error)) from None
    return Workload(config=config, **{**fields, **overrides})


def _read_huggingface(path: Path) -> ModelConfig:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        return ModelConfig.from_huggingface(values)
    except OSError as error:
        raise invalid("--huggingface", f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise invalid("--huggingface", f"{path}: {error}") from None


def _write(made: ModelProfile, output: Path | None, *, as_json: bool) -> None:
    text = format_profile(made)
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise invalid("--output", f"{output}: cannot be written: {error.strerror}") from None
    if as_json:
        sys.stdout.write(text)


def _refuse(options: Mapping[str, Any], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if options.get(name) is not None:
            raise invalid(f"--{name.replace('_', '-')}", why)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
