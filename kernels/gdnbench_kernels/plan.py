"""The plan of a warp-specialised kernel, as data: shared memory, tensor memory, roles, pipelines.

A kernel derives its addresses and arrival counts from its plan. Its header quotes the plan's tables, and a
test compares the two. Nothing here imports CuTe DSL.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod

SM_SMEM = 233_472
"""Bytes of shared memory in an SM of sm_100 (228 KiB)."""
CTA_SMEM = 1_024
"""Bytes of shared memory that the system reserves for each CTA."""
SMEM_LIMIT = SM_SMEM - CTA_SMEM
"""Bytes of shared memory that one CTA may have."""
TMEM_COLUMNS = 512
BARRIER_BYTES = 8
SIZES = {"uint8": 1, "bfloat16": 2, "float16": 2, "float32": 4, "int32": 4}
"""Bytes of an element."""
WARP = 32


class PlanError(ValueError):
    """The plan exceeds the hardware or contradicts itself; the message has both figures."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A shared-memory tensor of `stages` stages, aligned to `align`. `layout` is text for the header."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # a key of SIZES
    layout: str
    stages: int = 1
    align: int = 1024

    @property
    def stage_bytes(self) -> int:
        return prod(self.shape) * SIZES[self.dtype]

    @property
    def bytes(self) -> int:
        return self.stage_bytes * self.stages


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Columns [start, start + columns x stages) of tensor memory, 32-bit each.

    `lanes` are the lanes used of the 32 that each warp can read: "all"; or, for 64 rows, "low" (0..15) or
    "high" (16..31), so that two accumulators share columns.
    """

    name: str
    shape: tuple[int, int]
    start: int
    columns: int
    layout: str
    lanes: str = "all"
    stages: int = 1

    @property
    def stop(self) -> int:
        return self.start + self.columns * self.stages

    @property
    def offset(self) -> int:
        """The address relative to the allocation: lane in the high half, column in the low."""
        return ((16 << 16) if self.lanes == "high" else 0) + self.start


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages that producers fill and consumers release, with a full and an empty mbarrier per stage.

    `full_by` and `empty_by` name the roles that arrive; `full_count` and `empty_count` are the arrivals that
    complete a phase. `bytes` is what TMA writes in a phase; 0 without TMA.
    """

    name: str
    stages: int
    full_by: str
    full_count: int
    empty_by: str
    empty_count: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sync:
    """A fence, named barrier or wait outside the pipelines: the role that executes it, and what it orders."""

    name: str
    who: str
    orders: str


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One kernel's plan. `roles` are first warps, `warps` the number of warps of each role, `does` its
    task."""

    name: str
    roles: type[IntEnum]
    warps: dict[str, int]
    does: dict[str, str]
    smem: tuple[Buffer, ...]
    tmem: tuple[Accumulator, ...]
    pipelines: tuple[Pipeline, ...]
    syncs: tuple[Sync, ...] = ()
    ctas_per_sm: int = 1

    def __post_init__(self) -> None:
        smem = SM_SMEM - CTA_SMEM * self.ctas_per_sm
        if self.smem_bytes * self.ctas_per_sm > smem:
            raise PlanError(
                f"{self.name}: {self.ctas_per_sm} x {self.smem_bytes} bytes of shared memory;"
                f" there are {smem}"
            )
        if self.tmem_columns * self.ctas_per_sm > TMEM_COLUMNS:
            raise PlanError(
                f"{self.name}: {self.ctas_per_sm} x {self.tmem_columns} columns of tensor memory;"
                f" there are {TMEM_COLUMNS}"
            )
        for i, one in enumerate(self.tmem):
            for other in self.tmem[i + 1 :]:
                disjoint = {one.lanes, other.lanes} == {"low", "high"}
                if not disjoint and one.start < other.stop and other.start < one.stop:
                    raise PlanError(f"{self.name}: {one.name} and {other.name} share tensor memory")
        after = 0
        for role in self.roles:
            if role.value != after:
                raise PlanError(f"{self.name}: role {role.name} starts at warp {role.value}, not {after}")
            after += self.warps[role.name]

    @property
    def threads(self) -> int:
        return WARP * sum(self.warps.values())

    def threads_of(self, *roles: IntEnum) -> int:
        return WARP * sum(self.warps[role.name] for role in roles)

    @property
    def smem_bytes(self) -> int:
        """The buffers in order, each aligned, then the mbarriers, then the word with the TMEM address."""
        end = 0
        for buffer in self.smem:
            end = -(-end // buffer.align) * buffer.align + buffer.bytes
        end = -(-end // BARRIER_BYTES) * BARRIER_BYTES
        return end + sum(2 * pipe.stages * BARRIER_BYTES for pipe in self.pipelines) + (4 if self.tmem else 0)

    @property
    def tmem_columns(self) -> int:
        """The allocated columns: a power of two of at least 32, or 0."""
        if not self.tmem:
            return 0
        return max(32, 1 << (max(part.stop for part in self.tmem) - 1).bit_length())

    def pipeline(self, name: str) -> Pipeline:
        return next(pipe for pipe in self.pipelines if pipe.name == name)

    def buffer(self, name: str) -> Buffer:
        return next(buffer for buffer in self.smem if buffer.name == name)

    def accumulator(self, name: str) -> Accumulator:
        return next(part for part in self.tmem if part.name == name)

    def tables(self) -> str:
        """The header's tables: buffers, tensor memory, roles, pipelines, other synchronisation."""
        memory = [
            (buffer.name, _by(buffer.shape, buffer.stages), buffer.dtype, buffer.layout)
            for buffer in self.smem
        ]
        columns = [
            (
                part.name,
                _by(part.shape, part.stages),
                f"{part.start}..{part.stop - 1}",
                part.lanes,
                part.layout,
            )
            for part in self.tmem
        ]
        roles = [
            (role.name, _span(role.value, self.warps[role.name]), self.does[role.name]) for role in self.roles
        ]
        pipelines = [
            (pipe.name, str(pipe.stages), _arrivals(pipe), f"{pipe.empty_count} {pipe.empty_by}")
            for pipe in self.pipelines
        ]
        parts = [
            _table(("SMEM", "shape", "dtype", "layout"), memory),
            _table(("TMEM", "shape", "columns", "lanes", "layout"), columns) if columns else "",
            _table(("role", "warps", "does"), roles),
            _table(("pipeline", "stages", "full: arrivals", "empty: arrivals"), pipelines)
            if pipelines
            else "",
            _table(("sync", "who", "orders"), [(sync.name, sync.who, sync.orders) for sync in self.syncs])
            if self.syncs
            else "",
            f"{self.threads} threads, {self.smem_bytes} bytes of SMEM, {self.tmem_columns} columns of TMEM,"
            f" {self.ctas_per_sm} CTA{'s' if self.ctas_per_sm > 1 else ''} an SM",
        ]
        return "\n\n".join(part for part in parts if part)


def _by(shape: Sequence[int], stages: int) -> str:
    return " x ".join(map(str, shape)) + (f", {stages} stages" if stages > 1 else "")


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}..{first + count - 1}"


def _arrivals(pipe: Pipeline) -> str:
    return f"{pipe.full_count} {pipe.full_by}" + (f" + {pipe.bytes} bytes" if pipe.bytes else "")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest entry, indented by four spaces; the last is not padded."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    lines = [
        "  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]
    return "\n".join(f"    {line}" for line in lines)
