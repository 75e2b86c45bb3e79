# SPDX-License-Identifier: Apache-2.0
"""The GPUs whose time is predicted: every latency and rate with its source."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.predict.products import PHASE_LATENCY, Products, tcgen05, wgmma


@dataclass(frozen=True, slots=True)
class Parameter:
    """A figure, the range in which it may lie, its unit and its source. `group` is empty if the figure is
    published."""

    value: float
    low: float
    high: float
    unit: str
    source: str
    group: str = ""

    @property
    def published(self) -> bool:
        return not self.group


GROUPS = ("latency", "rate", "memory latency", "memory rate", "launch")
"""Parameters of a group move together when the range of a prediction is computed."""


def published(value: float, unit: str, source: str) -> Parameter:
    """A figure that a document or a published measurement states."""
    return Parameter(value, value, value, unit, source)


def assumed(value: float, low: float, high: float, unit: str, source: str, group: str) -> Parameter:
    """A figure that nobody published, and the range that it lies in."""
    return Parameter(value, low, high, unit, source, group)


_GUIDE = "CUDA C++ Programming Guide, compute capabilities"
_THROUGHPUT = "CUDA C++ Programming Guide, throughput of native arithmetic instructions"
_FITTED = "fitted to a third of the measured rows (docs/time_model.md)"
_IN_PUBLISHED = "fitted to the same rows, within published figures for sm_80 and sm_90"


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU. Cycles are those of the SMs. A pipe's `*_cycles` are the cycles for which one warp instruction
    keeps the pipe of a sub-partition busy.

    special_*            MUFU, F2I, I2F, F2F, FRND, POPC, FLO, BREV
    exponential_cycles   MUFU.EX2
    integer_cycles       ALU
    convert_cycles       packed conversions: F2FP, I2FP, F2IP, I2IP
    mma_*                mma.sync of m16n8k16
    tensor_rate          the highest rate of an SM, for 16-bit elements
    variable_latency     other instructions that use a scoreboard
    operands_read        from the issue of an instruction until it has read its operands
    phase_latency        from the end of a barrier's phase to the next instruction of a warp that waits for it
    memory_latency       a load from HBM, from the SM and back
    memory_burst, memory_scatter, memory_credit, memory_interleave, die_bytes    see `sm.Memory`
    die_latency          by how much the memory of the other die is farther
    copy_latency         by how much a bulk or tensor copy takes longer than a load
    copy_cycles          the copy engine, for each copy
    launch               from the end of a launch to the first CTA of the next one in a CUDA graph
    programmatic_saving  by how much a programmatic dependent launch begins earlier
    cta_start            until the first instruction of a CTA
    cta_interval         between the starts of two CTAs of an SM
    products             times of a wgmma or tcgen05.mma
    """

    name: str
    multiprocessors: Parameter
    clock: Parameter
    schedulers: Parameter
    special_cycles: Parameter
    exponential_cycles: Parameter
    special_latency: Parameter
    variable_latency: Parameter
    integer_cycles: Parameter
    convert_cycles: Parameter
    operands_read: Parameter
    shared_latency: Parameter
    phase_latency: Parameter
    mma_cycles: Parameter
    mma_latency: Parameter
    tensor_rate: Parameter
    memory_latency: Parameter
    memory_rate: Parameter
    memory_burst: Parameter
    memory_scatter: Parameter
    memory_credit: Parameter
    memory_interleave: Parameter
    die_latency: Parameter
    die_bytes: Parameter
    l2_latency: Parameter
    l2_rate: Parameter
    l1_latency: Parameter
    copy_latency: Parameter
    copy_cycles: Parameter
    launch: Parameter
    programmatic_saving: Parameter
    cta_start: Parameter
    cta_interval: Parameter
    products: Products

    def moved(self, group: str, end: str) -> Machine:
        """The same machine with all parameters of `group` at one `end` of their ranges, "low" or "high"."""
        return self.with_values(
            **{name: getattr(each, end) for name, each in self.parameters().items() if each.group == group}
        )

    def parameters(self) -> dict[str, Parameter]:
        """By name."""
        found = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in found if isinstance(value, Parameter)}

    def with_values(self, **values: float) -> Machine:
        """The same machine with other values of some parameters."""
        changed = {name: replace(self.parameters()[name], value=value) for name, value in values.items()}
        return replace(self, **changed)  # type: ignore[arg-type]


H200 = Machine(
    name="h200",
    multiprocessors=published(132, "", "NVIDIA H200 data sheet"),
    clock=published(1.98, "GHz", "NVML, while the rows of results/gdn_decode were timed"),
    schedulers=published(4, "", _GUIDE),
    special_cycles=published(8, "cycles", _THROUGHPUT),
    exponential_cycles=published(8, "cycles", _THROUGHPUT),
    special_latency=assumed(30.25, 18, 40, "cycles", _IN_PUBLISHED, "latency"),
    variable_latency=assumed(24, 22, 30, "cycles", _IN_PUBLISHED, "latency"),
    integer_cycles=published(2, "cycles", _THROUGHPUT),
    convert_cycles=assumed(5, 2, 8, "cycles", _FITTED, "rate"),
    operands_read=assumed(6, 6, 16, "cycles", _IN_PUBLISHED, "latency"),
    shared_latency=assumed(23, 23, 40, "cycles", _FITTED, "latency"),
    phase_latency=assumed(20, 10, 100, "cycles", _FITTED, "latency"),
    mma_cycles=assumed(9, 4, 9, "cycles", _FITTED, "rate"),
    mma_latency=assumed(36, 28, 36, "cycles", _IN_PUBLISHED, "latency"),
    tensor_rate=published(2048, "MAC/cycle", "NVIDIA H100 data sheet: 989 TFLOP/s of dense bf16"),
    memory_latency=assumed(370, 250, 520, "ns", _FITTED, "memory latency"),
    memory_rate=assumed(4000, 4000, 4500, "GB/s", _FITTED, "memory rate"),
    memory_burst=assumed(256, 256, 16384, "bytes", _FITTED, "memory rate"),
    memory_scatter=assumed(7.5, 0, 120, "cycles", _FITTED, "memory latency"),
    memory_credit=assumed(0, 0, 65536, "bytes", _FITTED, "memory rate"),
    memory_interleave=assumed(0, 0, 0.2, "", "not searched: others were fitted without it", "memory rate"),
    die_latency=published(0, "cycles", "one die"),
    die_bytes=published(4096, "bytes", "one die"),
    l2_latency=assumed(243, 200, 320, "cycles", _FITTED, "memory latency"),
    l2_rate=assumed(57, 32, 64, "bytes/cycle", _FITTED, "memory rate"),
    l1_latency=assumed(32.375, 30, 40, "cycles", _IN_PUBLISHED, "latency"),
    copy_latency=assumed(209, 0, 500, "cycles", _FITTED, "memory latency"),
    copy_cycles=assumed(25.7, 2, 60, "cycles", _FITTED, "rate"),
    launch=assumed(1.5, 0.7, 2.2, "us", _FITTED, "launch"),
    programmatic_saving=assumed(0.3, 0.3, 0.9, "us", _FITTED, "launch"),
    cta_start=assumed(200, 100, 1200, "cycles", _FITTED, "launch"),
    cta_interval=assumed(310, 100, 350, "cycles", _FITTED, "launch"),
    products=wgmma,
)

_MICROBENCH = "SemiAnalysisAI/microbench-blackwell (docs/time_model.md)"
_CURVE = "fitted to the published rates of tensor copies by bytes in flight"


def _as_on(machine: Machine, source: str) -> Machine:
    """`machine` for another GPU: `source` says of the parameters that nobody has published whose they are."""
    unpublished = {name: each for name, each in machine.parameters().items() if not each.published}
    named = {name: replace(each, source=source) for name, each in unpublished.items()}
    return replace(machine, **named)  # type: ignore[arg-type]


B200 = replace(
    _as_on(H200, "as on an H200"),
    name="b200",
    multiprocessors=published(148, "", _MICROBENCH),
    clock=published(1.965, "GHz", _MICROBENCH),
    memory_latency=assumed(250, 150, 450, "ns", _CURVE, "memory latency"),
    memory_rate=published(7250, "GB/s", _MICROBENCH),
    memory_scatter=assumed(49.5, 0, 120, "cycles", _CURVE, "memory latency"),
    memory_credit=assumed(61440, 49152, 98304, "bytes", _CURVE, "memory rate"),
    memory_interleave=assumed(1, 0.8, 1, "", f"{_CURVE}; there is no more than all", "memory rate"),
    die_latency=published(300, "cycles", "SemiAnalysis, Dissecting Nvidia Blackwell (2026), of L2"),
    die_bytes=assumed(4096, 2048, 8192, "bytes", _CURVE, "memory latency"),
    l2_rate=assumed(64, 48, 80, "bytes/cycle", "assumed: the port of earlier GPUs", "memory rate"),
    copy_latency=assumed(
        0,
        0,
        209,
        "cycles",
        "published: with equal bytes in flight LDGSTS is as fast; an H200's",
        "memory latency",
    ),
    tensor_rate=published(4096, "MAC/cycle", _MICROBENCH),
    phase_latency=assumed(
        PHASE_LATENCY, 10, 100, "cycles", "assumed: a part of the published latency of a product", "latency"
    ),
    products=tcgen05,
)

_LIKE_B200 = "as on a B200"
_ULTRA = "NVIDIA, Inside NVIDIA Blackwell Ultra (2025)"
B300 = replace(
    _as_on(B200, _LIKE_B200),
    name="b300",
    multiprocessors=published(148, "", "NVIDIA/cudnn-frontend of 2026, tests of choose_split_kv"),
    clock=published(2.032, "GHz", "sgl-project/sglang, pull request 28460"),
    exponential_cycles=published(4, "cycles", f"{_ULTRA}: 10.7 tera-exponentials/s, 5 of a B200"),
    tensor_rate=published(4096, "MAC/cycle", "NVIDIA HGX B300 data sheet: dense bf16 as on an HGX B200"),
    memory_rate=assumed(
        7250, 7000, 7700, "GB/s", f"{_LIKE_B200}; the upper end is the HGX B300 data sheet's", "memory rate"
    ),
)

MACHINES = {each.name: each for each in (H200, B200, B300)}


def parameter_table(machine: Machine) -> str:
    """The parameters as a table of docs/time_model.md."""
    lines = ["| parameter | value | unit | range | source |", "|---|---|---|---|---|"]
    for name, each in machine.parameters().items():
        between = "" if each.published else f"{each.low:g} to {each.high:g}"
        lines.append(f"| `{name}` | {each.value:g} | {each.unit} | {between} | {each.source} |")
    return "\n".join(lines)


def machine_model(name: str) -> Machine:
    """The time model of a GPU. Raises UnsupportedError if there is none."""
    if name not in MACHINES:
        raise UnsupportedError(f"the time on {name}: there is a model of {', '.join(MACHINES)}")
    return MACHINES[name]
