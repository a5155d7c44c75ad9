"""Accelerators that one can buy or rent, as their makers' public data sheets describe them.

FLOP/s are dense, without structured sparsity. `float32` is what true float32 products reach, since
engines do not round them to TF32: the CUDA cores' rate on NVIDIA, the matrix cores' on AMD. Data
sheets count both directions of a link together; here is one direction, half of that. Gigabytes are
10^9 bytes, which leaves some memory for the driver.
"""

import difflib
from dataclasses import dataclass, field
from types import MappingProxyType

from planaria_common.errors import invalid
from planaria_common.model_sizes import Dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device as a program sees it; rates are peaks."""

    name: str
    flops_per_second: MappingProxyType[Dtype, float] = field(hash=False)
    """By the type that is computed with; a type that is absent has no fast path."""
    memory_bytes: int
    memory_bytes_per_second: float
    peer_bytes_per_second: float
    """To one other accelerator of the node, one direction."""
    node_links_bytes_per_second: float
    """To all others of the node together: more than to one where links are direct."""
    network_bytes_per_second: float
    """To other nodes: the maker's or a large cloud's usual network, divided by accelerators."""
    accelerators_per_node: int = 8

    def group_bytes_per_second(self, num_accelerators: int) -> float:
        """What one of a group of accelerators can send within the group, all links together."""
        return min(
            self.node_links_bytes_per_second,
            self.peer_bytes_per_second * max(num_accelerators - 1, 1),
        )


_TERA = 1e12
_GIGA = 10**9


def _accelerator(
    name: str,
    float32: float,
    bfloat16: float | None,
    memory: int,
    memory_bandwidth: float,
    peer: float,
    node_links: float,
    network: float,
) -> Accelerator:
    """Takes TFLOP/s, GB, and GB/s; `network` in Gb/s for each accelerator."""
    flops: dict[Dtype, float] = {"float32": float32 * _TERA}
    if bfloat16 is not None:
        flops["bfloat16"] = bfloat16 * _TERA
    return Accelerator(
        name=name,
        flops_per_second=MappingProxyType(flops),
        memory_bytes=memory * _GIGA,
        memory_bytes_per_second=memory_bandwidth * _GIGA,
        peer_bytes_per_second=peer * _GIGA,
        node_links_bytes_per_second=node_links * _GIGA,
        network_bytes_per_second=network / 8 * _GIGA,
    )


# fmt: off
_ALL = (
    #             name       float32  bfloat16   GB  GB/s  peer  node  network
    # NVIDIA V100 data sheet (2020), SXM2: 15.7 TFLOPS, 32 GB, 900 GB/s, NVLink 300 GB/s in six
    # links, two of them to a neighbour in DGX-1; DGX-1 data sheet: 4 x 100 Gb/s for 8 GPUs. Its
    # tensor cores know float16 only.
    _accelerator("v100",        15.7,     None,  32,  900,   50,  150,   50),
    # NVIDIA A100 data sheet (2021), SXM4 40 GB: 19.5 and 312 TFLOPS, 1,555 GB/s, NVLink 600 GB/s;
    # DGX A100 data sheet: 8 x 200 Gb/s for 8 GPUs.
    _accelerator("a100-40",     19.5,      312,  40, 1555,  300,  300,  200),
    # The same, SXM4 80 GB: 2,039 GB/s.
    _accelerator("a100-80",     19.5,      312,  80, 2039,  300,  300,  200),
    # NVIDIA H100 data sheet, SXM5: 67 and 1,979 TFLOPS (with sparsity), 80 GB, 3.35 TB/s, NVLink
    # 900 GB/s; DGX H100 data sheet: 8 x 400 Gb/s for 8 GPUs.
    _accelerator("h100",          67,    989.5,  80, 3350,  450,  450,  400),
    # NVIDIA H200 data sheet, SXM: as H100 with 141 GB and 4.8 TB/s; DGX H200 data sheet.
    _accelerator("h200",          67,    989.5, 141, 4800,  450,  450,  400),
    # NVIDIA HGX B200 (8 GPUs): 600 TFLOPS float32, 36 PFLOPS bfloat16 with sparsity; DGX B200 data
    # sheet: 1,440 GB and 64 TB/s for 8 GPUs, NVLink 14.4 TB/s together, 8 x 400 Gb/s.
    _accelerator("b200",          75,     2250, 180, 8000,  900,  900,  400),
    # NVIDIA L40S data sheet: 91.6 and 362.05 TFLOPS, 48 GB, 864 GB/s, PCIe Gen4 x16 64 GB/s; the
    # network is that of Amazon's g6e.48xlarge, 400 Gb/s for 8 GPUs.
    _accelerator("l40s",        91.6,   362.05,  48,  864,   32,   32,   50),
    # NVIDIA A10 data sheet: 31.2 and 125 TFLOPS, 24 GB, 600 GB/s, PCIe Gen4 64 GB/s; the network is
    # that of a node with 100 Gb/s for 8 GPUs, as Amazon's g5.48xlarge (with the A10G) has.
    _accelerator("a10",         31.2,      125,  24,  600,   32,   32, 12.5),
    # NVIDIA T4 data sheet: 8.1 TFLOPS, 16 GB, 300 GB/s, PCIe Gen3 x16 32 GB/s; the network is that
    # of Amazon's g4dn.metal, 100 Gb/s for 8 GPUs. Its tensor cores know float16 only.
    _accelerator("t4",           8.1,     None,  16,  300,   16,   16, 12.5),
    # AMD Instinct MI250X data sheet, halved: programs see its two dies (GCDs) as devices. 95.7
    # (matrix) and 383 TFLOPS, 128 GB, 3.2 TB/s, Infinity Fabric links of 50 GB/s per direction, of
    # which a die has at least one to the next package and four to its twin; OLCF Frontier's user
    # guide: 4 x 200 Gb/s for 8 dies.
    _accelerator("mi250x",     47.85,    191.5,  64, 1600,   50,  150,  100),
    # AMD Instinct MI300X data sheet: 163.4 (matrix) and 1,307.4 TFLOPS, 192 GB, 5.3 TB/s, seven
    # Infinity Fabric links of 128 GB/s, one to each other of the platform; the network is that of
    # Azure's ND MI300X v5, 8 x 400 Gb/s.
    _accelerator("mi300x",     163.4,   1307.4, 192, 5300,   64,  448,  400),
)
# fmt: on

ACCELERATORS = MappingProxyType({accelerator.name: accelerator for accelerator in _ALL})
"""By name; `mi250x` is one of the two dies of a package."""


def find_accelerator(name: str) -> Accelerator:
    """Look an accelerator up, whatever the case of its name.

    Raises:
        PlanariaError: INVALID_ARGUMENT, naming those that are nearest.
    """
    found = ACCELERATORS.get(name.lower())
    if found is not None:
        return found
    nearest = [known for known in ACCELERATORS if name and known.startswith(name.lower())]
    nearest = nearest or difflib.get_close_matches(name.lower(), ACCELERATORS, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"known: {_names()}"
    raise invalid("--accelerator", f"unknown accelerator {name!r}; {hint}", accelerator=name)


def flops_per_second(accelerator: Accelerator, dtype: Dtype) -> float:
    """Return an accelerator's peak for a type.

    Raises:
        PlanariaError: INVALID_ARGUMENT when it has none.
    """
    found = accelerator.flops_per_second.get(dtype)
    if found is None:
        known = " or ".join(accelerator.flops_per_second)
        problem = f"{accelerator.name} does not compute in {dtype}; use {known}"
        raise invalid("--dtype", problem, accelerator=accelerator.name)
    return found


def _names() -> str:
    return ", ".join(ACCELERATORS)
