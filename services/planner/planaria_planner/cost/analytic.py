"""A profile without measuring: from a model's configuration and an accelerator's data sheet.

A layer's pass takes the longer of its arithmetic and its memory traffic (the roofline: Williams,
Waterman, Patterson, CACM 2009), each at a stated part of the peak. A stage of g accelerators runs
tensor-parallel as Megatron-LM does (Shoeybi et al., 2019): arithmetic and traffic are divided by g,
and each block sums its hidden states twice per pass over the accelerators.
"""

import math
from dataclasses import dataclass
from typing import Final

from planaria_common.errors import ErrorReason, PlanariaError, invalid
from planaria_common.model_config import ModelConfig
from planaria_common.model_sizes import Dtype, LayerSize, layer_sizes
from planaria_planner.cost.accelerators import Accelerator, flops_per_second
from planaria_planner.cost.profile import Hardware, Layer, ModelProfile, NodeKind, widths_up_to

MAX_WIDTH = 8
LINK_LATENCY_SECONDS: Final = 5e-6
"""Of one message, launch included: what collective libraries reach within and between nodes."""

_DTYPE_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Which part of a data sheet's peak a training job reaches.

    Raises:
        PlanariaError: INVALID_ARGUMENT when one is not in (0, 1].
    """

    compute: float = 0.5
    """Of the FLOP/s: well-tuned transformers run at 40 to 60 %."""
    memory: float = 0.8
    """Of the memory's bandwidth."""
    link: float = 0.8
    """Of links and network."""

    def __post_init__(self) -> None:
        for name in ("compute", "memory", "link"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise invalid("--efficiency", f"{name}={value:g} is not more than 0 and at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained.

    Attributes:
        config: the model.
        microbatch_size: sequences of a microbatch.
        sequence_length: tokens of a sequence.
        dtype: the type that is computed with.
        reproducible: whether gradients are summed in 64-bit fixed point.
    """

    config: ModelConfig
    microbatch_size: int
    sequence_length: int
    dtype: Dtype = "float32"
    reproducible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What it is trained on.

    Attributes:
        accelerator: of every node.
        accelerators_per_node: how many of them.
        inter_node_bytes_per_second: per accelerator, as reached; by default the usual network's.
        link_latency_seconds: of any link.
        efficiency: which part of the peaks is reached.
    """

    accelerator: Accelerator
    accelerators_per_node: int
    inter_node_bytes_per_second: float | None = None
    link_latency_seconds: float = LINK_LATENCY_SECONDS
    efficiency: Efficiency = Efficiency()


def analytic_profile(workload: Workload, cluster: Cluster) -> ModelProfile:
    """Estimate a model's costs on a cluster that need not exist.

    Args:
        workload: the model and its microbatches.
        cluster: the nodes. Stages are as wide as `tensor_parallel_widths` allows.

    Raises:
        PlanariaError: INVALID_ARGUMENT or INVALID_PROFILE, naming what is wrong.
    """
    accelerator, efficiency = cluster.accelerator, cluster.efficiency
    network = cluster.inter_node_bytes_per_second
    if network is None:
        network = accelerator.network_bytes_per_second * efficiency.link
    widths = tensor_parallel_widths(workload.config, cluster.accelerators_per_node)
    roofline = _Roofline(workload=workload, cluster=cluster)
    return ModelProfile(
        microbatch_size=workload.microbatch_size,
        hardware=Hardware(
            node_kinds=(
                NodeKind(
                    name=accelerator.name,
                    accelerators_per_node=cluster.accelerators_per_node,
                    accelerator_memory_bytes=accelerator.memory_bytes,
                ),
            ),
            intra_node_bytes_per_second=accelerator.peer_bytes_per_second * efficiency.link,
            inter_node_bytes_per_second=network,
            link_latency_seconds=cluster.link_latency_seconds,
        ),
        layers=tuple(
            Layer(
                name=size.name,
                forward_seconds={g: roofline.forward_seconds(size, g) for g in widths},
                backward_seconds={g: roofline.backward_seconds(size, g) for g in widths},
                parameter_bytes=size.parameter_bytes,
                state_bytes=size.state_bytes,
                activation_bytes=size.activation_bytes,
                output_bytes=size.output_bytes,
            )
            for size in _sizes(workload)
        ),
    )


def tensor_parallel_widths(config: ModelConfig, accelerators_per_node: int) -> tuple[int, ...]:
    """Return the powers of two, up to 8 and a node's, that divide a block's heads and its MLP."""
    splits = math.gcd(config.num_heads, config.num_key_value_heads, config.intermediate_size)
    limit = min(accelerators_per_node, MAX_WIDTH)
    return tuple(width for width in widths_up_to(limit) if splits % width == 0)


def _sizes(workload: Workload) -> tuple[LayerSize, ...]:
    try:
        return layer_sizes(
            workload.config,
            workload.microbatch_size,
            workload.sequence_length,
            dtype=workload.dtype,
            reproducible=workload.reproducible,
        )
    except ValueError as error:
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT, str(error), {"field": str(error).partition(":")[0]}
        ) from None


class _Roofline:
    """Seconds of a layer's passes."""

    def __init__(self, *, workload: Workload, cluster: Cluster) -> None:
        accelerator, efficiency = cluster.accelerator, cluster.efficiency
        self._cluster = cluster
        self._dtype_bytes = _DTYPE_BYTES[workload.dtype]
        self._sum_bytes = 8 if workload.reproducible else 4
        self._flops = flops_per_second(accelerator, workload.dtype) * efficiency.compute
        self._memory = accelerator.memory_bytes_per_second * efficiency.memory
        num_tokens = workload.microbatch_size * workload.sequence_length
        self._hidden_bytes = num_tokens * workload.config.hidden_size * self._dtype_bytes

    def forward_seconds(self, size: LayerSize, width: int) -> float:
        seconds = self._longer(size.forward_flops, self._forward_traffic(size)) / width
        # A vocabulary cut over accelerators gives parts of the embedding's sum; a block sums after
        # its attention and after its MLP; what the head's loss exchanges is small.
        num_sums = {"embedding": 1, "head": 0}.get(size.name, 2)
        return seconds + num_sums * self._all_reduce_seconds(width)

    def backward_seconds(self, size: LayerSize, width: int) -> float:
        """Twice the forward pass, and the gradients added to the step's sum."""
        num_parameters = size.parameter_bytes // 4
        gradient_traffic = num_parameters * 2 * (self._dtype_bytes + self._sum_bytes)
        traffic = 2 * self._forward_traffic(size) + gradient_traffic
        seconds = self._longer(2 * size.forward_flops, traffic) / width
        num_sums = {"embedding": 0, "head": 1}.get(size.name, 2)
        return seconds + num_sums * self._all_reduce_seconds(width)

    def _longer(self, flops: int, traffic_bytes: int) -> float:
        return max(flops / self._flops, traffic_bytes / self._memory)

    def _forward_traffic(self, size: LayerSize) -> int:
        """Bytes read and written: parameters, input, what is kept for later, output."""
        if size.name == "embedding":  # reads the rows of its tokens only
            return self._hidden_bytes + size.activation_bytes + size.output_bytes
        weights = size.parameter_bytes // 4 * self._dtype_bytes
        return weights + self._hidden_bytes + size.activation_bytes + size.output_bytes

    def _all_reduce_seconds(self, width: int) -> float:
        """Recursive halving and doubling (Thakur, Rabenseifner, Gropp, IJHPCA 2005)."""
        if width == 1:
            return 0.0
        bandwidth = self._cluster.accelerator.group_bytes_per_second(width)
        bandwidth *= self._cluster.efficiency.link
        rounds = 2 * math.log2(width)
        moved = 2 * (width - 1) / width * self._hidden_bytes
        return rounds * self._cluster.link_latency_seconds + moved / bandwidth
