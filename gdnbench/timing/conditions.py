# SPDX-License-Identifier: Apache-2.0
"""Watches the machine while kernels are timed, and decides when a block was disturbed.

On a GPU, NVML (through nvidia-ml-py) reports clocks, temperature, power, reasons for throttling, and the
processes that compute. On a CPU, the accounting of the operating system says how much CPU time other
processes take. A machine that reports neither is timed all the same, and the result says that its conditions
are unknown.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from gdnbench.timing.result import Seen
from gdnbench.timing.types import Conditions, Watch

T = TypeVar("T", bound=Hashable)
Number = TypeVar("Number", int, float)

SLOWING = {
    0x04: "SwPowerCap",
    0x08: "HwSlowdown",
    0x10: "SyncBoost",
    0x20: "SwThermalSlowdown",
    0x40: "HwThermalSlowdown",
    0x80: "HwPowerBrakeSlowdown",
}
"""Bits of NVML's clocks event reasons that count. An idle GPU (1), clocks set by an application (2) or for a
display (0x100) do not: the first is true between rounds, the others hold all the time and for every kernel.
Later bits may say what always holds (what reliability allows limits every clock), so they do not count."""

COUNTERS = {74: "power", 75: "thermal", 76: "sync boost", 77: "board limit"}
"""NVML fields, NVML_FI_DEV_PERF_POLICY_*: nanoseconds for which this held the clocks down, so a slowdown in
the middle of a round shows in the look after it. The numbers of the newer fields differ between drivers."""

CLOCK_STEP = 15
"""MHz between neighbouring SM clocks of data-centre GPUs."""

CLOCK_SLACK = 2 * CLOCK_STEP
"""MHz by which the SM clock may differ within a block: a step down and a step up, as boosting takes them all
the time. A block's ratio moves by at most that, 1.5 % at 1980 MHz, to either side alike since the order of
the kernels turns; more is another state of the chip, not jitter."""

TAKEN = 0.25
"""Part of the CPUs' time that other processes may take: the middle half that the statistics keep leaves out
the quarter of the blocks on each side that were hit."""

WINDOW = 0.1
"""Seconds over which the CPUs' time is added up: ten of Linux's 10 ms ticks on each."""

CONTENDED = "other processes take over a quarter of the CPUs"


def watch_of(device: torch.device) -> Watch:
    """Looks at `device`, which for CUDA must be initialised."""
    if device.type == "cuda":
        return gpu_watch(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    return CpuWatch()


def disturbances(looks: Sequence[Conditions]) -> tuple[str, ...]:
    """What spoils a block that was looked at before its first round and after each."""
    found = [
        reason if reason == CONTENDED else f"slowed down: {reason}"
        for reason in _in_order(look.throttled for look in looks)
    ]
    found += [f"process {pid} computes on the device too" for pid in _in_order(look.others for look in looks)]
    clocks = [look.clock for look in looks if look.clock is not None]
    if clocks and max(clocks) - min(clocks) > CLOCK_SLACK:
        found.append(f"the SM clock moved by more than {CLOCK_SLACK} MHz")
    if len({look.memory_clock for look in looks if look.memory_clock is not None}) > 1:
        found.append("the memory clock moved")
    return tuple(found)


def _in_order(groups: Iterable[Iterable[T]]) -> list[T]:
    """Each item once."""
    return list(dict.fromkeys(item for group in groups for item in group))


class Extremes:
    """Merges observations into a `Seen`: numbers of the blocks that were kept, reasons and processes of all
    blocks."""

    def __init__(self) -> None:
        self._first: Conditions | None = None
        self._last = self._lowest = self._highest = Conditions()

    def add(self, looks: Sequence[Conditions], kept: bool) -> None:
        """The looks at one block. The clocks of an idle GPU before the first one, say, are not those of any
        sample."""
        for look in looks:
            self._first = self._first or look
            self._last = look
            number = look if kept else Conditions(throttled=look.throttled, others=look.others)
            self._lowest = _merged(self._lowest, number, highest=False)
            self._highest = _merged(self._highest, number, highest=True)

    def summarise(self, source: str) -> Seen:
        return Seen(source, self._first or Conditions(), self._last, self._lowest, self._highest)


def _merged(known: Conditions, look: Conditions, highest: bool) -> Conditions:
    """The lowest or highest of each number; reasons and processes only beside the highest."""
    return Conditions(
        clock=_extreme(known.clock, look.clock, highest),
        memory_clock=_extreme(known.memory_clock, look.memory_clock, highest),
        temperature=_extreme(known.temperature, look.temperature, highest),
        power=_extreme(known.power, look.power, highest),
        throttled=tuple(_in_order((known.throttled, look.throttled))) if highest else (),
        others=tuple(sorted({*known.others, *look.others})) if highest else (),
    )


def _extreme(one: Number | None, other: Number | None, highest: bool) -> Number | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other) if highest else min(one, other)


class UnknownWatch:
    """Reports no conditions, and the reason."""

    def __init__(self, why: str) -> None:
        self.source = f"unknown: {why}"

    def now(self) -> Conditions:
        return Conditions()

    def close(self) -> None:
        """There is nothing to close."""


def gpu_watch(uuid: str) -> Watch:
    """NVML's, of the GPU `uuid` ("GPU-..."); one that knows nothing where NVML cannot be asked."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return UnknownWatch("nvidia-ml-py is missing: pip install 'gdnbench[timing]'")
    try:
        return NvmlWatch(nvml, uuid)
    except nvml.NVMLError as error:
        return UnknownWatch(f"NVML does not show {uuid}: {error}")


class NvmlWatch:
    """One GPU by NVML. What a driver does not answer is None, and `source` names it.

    Another process counts while it computes: one that only holds memory slows nobody down. Processes of ours,
    this one's parent and the workers that it started, never count. In a container the process numbers may be
    the host's, and nothing tells which is ours; but we compute between any two looks, so the only one that
    does is ours if it had a context when the watch was opened, and of several all but one count. Where the
    driver does not say who computes, each process of others with a context counts; in such a container, each
    that got one since.
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._unanswered: list[str] = []
        try:
            self._device = nvml.nvmlDeviceGetHandleByUUID(uuid)
            self._utilised = int(time.time() * 1e6)  # microseconds since 1970, as NVML counts
            self._counted = self._counters()
            self._since_start = self._with_context()
            self._ours = -1  # the process number that is taken for ours, where ours is not shown
            first = self.now()
        except nvml.NVMLError:
            nvml.nvmlShutdown()
            raise
        missing = [
            name for name in ("clock", "memory_clock", "temperature", "power") if getattr(first, name) is None
        ]
        self._missing = missing + self._unanswered
        self._open = True

    @property
    def source(self) -> str:
        return "NVML" + (f", without {', '.join(self._missing)}" if self._missing else "")

    def now(self) -> Conditions:
        nvml, device = self._nvml, self._device
        power = self._ask("", nvml.nvmlDeviceGetPowerUsage, device)
        return Conditions(
            clock=self._ask("", nvml.nvmlDeviceGetClockInfo, device, nvml.NVML_CLOCK_SM),
            memory_clock=self._ask("", nvml.nvmlDeviceGetClockInfo, device, nvml.NVML_CLOCK_MEM),
            temperature=self._ask("", nvml.nvmlDeviceGetTemperature, device, nvml.NVML_TEMPERATURE_GPU),
            power=None if power is None else power / 1000,  # NVML's are milliwatts
            throttled=(*self._reasons(), *self._grown()),
            others=self._others(),
        )

    def close(self) -> None:
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()

    def _ask(self, name: str, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer; None, with `name` remembered, where this driver or GPU has none."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            if name and name not in self._unanswered:
                self._unanswered.append(name)
            return None

    def _reasons(self) -> tuple[str, ...]:
        bits = self._ask("throttle reasons", self._nvml.nvmlDeviceGetCurrentClocksEventReasons, self._device)
        return tuple(name for bit, name in SLOWING.items() if (bits or 0) & bit)

    def _counters(self) -> dict[int, int]:
        asked = self._ask(
            "throttle counters", self._nvml.nvmlDeviceGetFieldValues, self._device, list(COUNTERS)
        )
        return {
            answer.fieldId: answer.value.ullVal
            for answer in asked or ()
            if answer.nvmlReturn == self._nvml.NVML_SUCCESS
        }

    def _grown(self) -> tuple[str, ...]:
        """Counters that went up since the last look."""
        before, self._counted = self._counted, self._counters()
        return tuple(
            f"{COUNTERS[field]} counter"
            for field, value in self._counted.items()
            if value > before.get(field, value)
        )

    def _others(self) -> tuple[int, ...]:
        there, working = self._with_context(), self._working()
        if os.getpid() in there:
            strangers = (there if working is None else working) - {os.getpid()}
            return tuple(sorted(pid for pid in strangers if not related(pid)))
        if working is None:
            return tuple(sorted(there - self._since_start))
        if self._ours not in working:
            # Where NVML shows no contexts either, anyone may be us.
            possible = sorted(working & self._since_start if self._since_start else working)
            self._ours = possible[-1] if possible else self._ours
        return tuple(sorted(working - {self._ours}))

    def _with_context(self) -> set[int]:
        asked = self._ask("processes", self._nvml.nvmlDeviceGetComputeRunningProcesses, self._device)
        return {process.pid for process in asked or ()}

    def _working(self) -> set[int] | None:
        """Those that computed since the last question; None where the driver does not say."""
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._device, self._utilised)
        except nvml.NVMLError as error:
            return set() if error.value == nvml.NVML_ERROR_NOT_FOUND else None
        self._utilised = max((self._utilised, *(sample.timeStamp for sample in samples)))
        return {sample.pid for sample in samples if sample.smUtil > 0}


def related(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process is this one's parent, or a worker of gdnbench that the parent started, by /proc; not
    if it is gone."""
    if pid == os.getppid():
        return True
    try:
        # proc(5): the name, which may hold anything, ends with the last parenthesis; then state and parent.
        parent = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1]
        command = (proc / str(pid) / "cmdline").read_bytes()
    except (OSError, IndexError):
        return False
    return int(parent) == os.getppid() and b"\0-m\0gdnbench." in command


class CpuWatch:
    """How much CPU time other processes take, by /proc/stat: time that is busy, or stolen by a hypervisor,
    and is not this run's. A load average would not do: it covers a minute, and counts this run and processes
    that wait for a disk.

    One observation is used until the next window is full. Without /proc/stat (no Linux) conditions are
    unknown.
    """

    def __init__(self, stat: Path = Path("/proc/stat"), now: Callable[[], float] = time.monotonic) -> None:
        self._stat = stat
        self._now = now
        self._found = Conditions()
        self._since = now()
        self._busy = self._others()
        self.source = "/proc/stat" if self._busy is not None else f"unknown: {stat} says nothing of CPUs"

    def now(self) -> Conditions:
        elapsed = self._now() - self._since
        if self._busy is None or elapsed < WINDOW:
            return self._found
        before, self._busy = self._busy, self._others()
        self._since += elapsed
        if self._busy is not None:
            taken = (self._busy[0] - before[0]) / (elapsed * self._busy[1])
            self._found = Conditions(throttled=(CONTENDED,) if taken > TAKEN else ())
        return self._found

    def close(self) -> None:
        """There is nothing to close."""

    def _others(self) -> tuple[float, int] | None:
        """Seconds of CPU that others have taken, and the number of CPUs."""
        try:
            lines = self._stat.read_text().splitlines()
        except OSError:
            return None
        cpus = sum(line.startswith("cpu") and line[3:4].isdigit() for line in lines)
        if not cpus:
            return None
        # user nice system idle iowait irq softirq steal, in ticks, proc(5); guests are in user and nice.
        ticks = [int(word) for word in lines[0].split()[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        ours = os.times()
        return busy - ours.user - ours.system, cpus
