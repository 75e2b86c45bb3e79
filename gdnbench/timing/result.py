# SPDX-License-Identifier: Apache-2.0
"""Everything that timing kernels on one record found, small enough to keep, with its form in JSON.

Times are seconds a launch. A kernel's samples and the record's blocks run side by side: sample i of every
kernel is of block i, and only blocks that nothing disturbed are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gdnbench.errors import BadInputError
from gdnbench.report.outcome import Outcome
from gdnbench.timing.json_values import from_plain, to_plain
from gdnbench.timing.statistics import Interval, Summary, TimeInterval, Verdict
from gdnbench.timing.types import Conditions, Mode

FORMAT = 1
"""Of `to_json`'s object. A reader refuses another one; names added later do not change it."""


class End(StrEnum):
    """Why measuring stopped."""

    PRECISE = "precise"  # every interval is as narrow as was asked for
    BLOCKS = "blocks"  # the cap on blocks
    SECONDS = "seconds"  # the cap on seconds
    INTERRUPTED = "interrupted"  # Ctrl-C; what was measured until then stands
    DISTURBED = "disturbance"  # too many blocks in a row were disturbed; what was measured before stands


@dataclass(frozen=True, slots=True)
class Block:
    """One round of every kernel, kept. `order` are positions among the kernels that were timed, as the
    record has them; the one past the last is the first kernel's repeat."""

    placement: int
    run: int  # blocks of one run share the placement and take every order equally often
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """The conditions from the first block to the last.

    `source` is where they come from ("NVML", "/proc/stat"), or why there are none. None or empty: unknown, or
    nothing happened.
    """

    source: str
    start: Conditions = field(default_factory=Conditions)
    end: Conditions = field(default_factory=Conditions)
    lowest: Conditions = field(default_factory=Conditions)  # of each number, in blocks that were kept
    highest: Conditions = field(default_factory=Conditions)  # and every reason and process seen in any block


@dataclass(frozen=True, slots=True)
class Rates:
    """What a launch moves and computes, from the shapes of the call, and how fast the median launch did."""

    bytes: int
    flop: int
    bytes_per_second: float
    flop_per_second: float
    of_ceiling: float | None = None  # 1 is the ceiling; None: no ceiling was measured

    @classmethod
    def of_kernel(cls, bytes: int, flop: int, seconds: float, ceiling: float | None) -> Rates:
        """At `seconds` a launch, against a ceiling in bytes/s."""
        rate = bytes / seconds
        return cls(bytes, flop, rate, flop / seconds, None if ceiling is None else rate / ceiling)


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """One kernel on the record. Of one that was not timed only the first three say anything.

    outcome: PASS, or MISMATCH of one timed although its outputs are wrong; else why it was not timed.
    """

    name: str
    outcome: Outcome
    reason: str = ""  # one line, where the outcome is not PASS
    samples: tuple[float, ...] = ()  # seconds a launch, by block
    summary: Summary | None = None
    launches: int = 0  # of a round
    rates: Rates | None = None
    programs: Mapping[str, float] = field(default_factory=dict)  # seconds a launch of each, where several
    interval: TimeInterval | None = None  # of the median; None: too few blocks

    @property
    def timed(self) -> bool:
        return self.summary is not None


@dataclass(frozen=True, slots=True)
class PairTiming:
    """`other` beside `first`, the record's first timed kernel. The ratio is other's time over first's.

    margin: how far beyond 1 the whole interval must lie for a verdict, as a part of 1. within: how far from
    1 the interval reaches, what "no difference" means here; None without an interval.
    """

    first: str
    other: str
    interval: Interval | None  # None: too few blocks
    verdict: Verdict
    margin: float
    within: float | None = None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The fastest that this machine moved as many bytes in this session: read and written both counted."""

    bytes_per_second: float
    method: str  # the way that reached it
    candidates: Mapping[str, float] = field(default_factory=dict)  # bytes/s of each way that was tried


@dataclass(frozen=True, slots=True)
class Control:
    """Seconds a launch of a kernel that only reads, as `gdnbench.timing.cache` says; and whether the
    cache was what the mode says."""

    cold: float
    warm: float
    known: float
    bytes: int  # that a launch read
    cache_bytes: int | None  # of the last level; None: the machine does not say
    holds: bool | None  # None: the control cannot tell
    reason: str


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the times are from. `device` is the GPU's or the CPU's name."""

    kind: str  # "cuda" or "cpu"
    device: str
    host: str
    driver: str | None = None
    cuda: str | None = None
    python: str = ""
    os: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)  # versions


@dataclass(frozen=True, slots=True)
class RecordTiming:
    """Kernels compared on one record. The first one that was timed is what the others are compared with.

    `repeat` is the first kernel against itself in the same blocks, where that was asked for: its `margin` is
    the clock's alone. `notes`: what was converted, what is unknown, what to keep in mind; one line each.
    """

    label: str
    number: int
    key: str
    op: str
    mode: Mode
    machine: Machine
    kernels: tuple[KernelTiming, ...]
    pairs: tuple[PairTiming, ...] = ()
    repeat: PairTiming | None = None
    blocks: tuple[Block, ...] = ()
    placements: int = 0
    end: End | None = None  # None: nothing was timed
    seconds: float = 0.0  # of wall clock that the comparison took
    discarded: Mapping[str, int] = field(default_factory=dict)  # blocks, by reason
    conditions: Seen | None = None
    ceiling: Ceiling | None = None
    control: Control | None = None
    notes: tuple[str, ...] = ()
    time: str = ""  # when it was measured, UTC, 2026-01-31T12:00:00Z
    repeat_samples: tuple[float, ...] = ()  # of the first kernel's second round in each block
    disturbed: Mapping[str, int] = field(default_factory=dict)  # blocks that were kept, by reason
    clock: str = ""  # that timed kernels and ceiling: perf_counter, events or cupti; "": none was named

    def kernel(self, name: str) -> KernelTiming | None:
        return next((kernel for kernel in self.kernels if kernel.name == name), None)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **to_plain(self)}

    @classmethod
    def from_json(cls, value: Any, where: str = "timing") -> RecordTiming:
        """What `to_json` wrote; BadInputError for anything else. `where` begins the message."""
        if not isinstance(value, dict) or "format" not in value:
            raise BadInputError(f"{where} is no timing of a record: it has no `format`")
        if value["format"] != FORMAT:
            raise BadInputError(
                f"{where} has timing format {value['format']!r}; this gdnbench reads format {FORMAT}: "
                "measure again, or use the release that wrote it"
            )
        found = from_plain(cls, value, where)
        for problem in _impossible(found):
            raise BadInputError(f"{where}: {problem}")
        return found

    def dumps(self) -> str:
        return json.dumps(self.to_json(), allow_nan=False)


SHORTEST, LONGEST = 1e-12, 1e9
"""Seconds a launch that a clock may have seen. Ratios of such times have logarithms that stay in bounds."""


def _impossible(timing: RecordTiming) -> Iterator[str]:
    """What no timing can have found, and who compares or prints it relies on."""
    timed = [kernel for kernel in timing.kernels if kernel.summary is not None]
    series = [(kernel.name, kernel.samples) for kernel in timed]
    if timing.repeat is not None:
        series.append((f"the repeat of {timing.repeat.first}", timing.repeat_samples))
    for name, samples in series:
        if len(samples) != len(timing.blocks):
            yield f"{name} has {len(samples)} samples of {len(timing.blocks)} blocks"
        for sample in samples:
            if not SHORTEST <= sample <= LONGEST:
                yield f"{name} has a sample of {sample} s"
    for kernel in timed:
        assert kernel.summary is not None
        if not SHORTEST <= kernel.summary.lower <= kernel.summary.median <= kernel.summary.upper <= LONGEST:
            yield f"{kernel.name}: the quartiles are not ascending finite numbers"
        if kernel.interval is not None and not SHORTEST / 2 <= kernel.interval.low <= kernel.interval.high:
            yield f"{kernel.name} has an interval from {kernel.interval.low} to {kernel.interval.high} s"
        if kernel.launches < 1:
            yield f"{kernel.name} has {kernel.launches} launches a round"
    for pair in (*timing.pairs, *filter(None, (timing.repeat,))):
        interval = pair.interval
        if interval is not None and not 0 < interval.low <= interval.ratio <= interval.high:
            ends = f"{interval.low} to {interval.high}"
            yield f"{pair.other} has an interval from {ends} about {interval.ratio}"
    seen = timing.conditions
    for clock in () if seen is None else (seen.lowest.clock, seen.highest.clock):
        if clock is not None and clock < 1:
            yield f"a clock of {clock} MHz was seen"
