# SPDX-License-Identifier: Apache-2.0
"""The watches, on a fake NVML that answers as NVIDIA's documentation says, and on /proc/stat by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gdnbench.timing.conditions import (
    CONTENDED,
    CpuWatch,
    Extremes,
    UnknownWatch,
    disturbances,
    gpu_watch,
    related,
    watch_of,
)
from gdnbench.timing.types import Conditions
from tests.messages import wording
from tests.timing.fake_nvml import FakeNvml, NVMLError

OURS = os.getpid()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_what_nvml_says(nvml: FakeNvml) -> None:
    watch = gpu_watch("GPU-0")
    assert watch.source == "NVML"
    assert watch.now() == Conditions(clock=1980, memory_clock=3201, temperature=41, power=123.456)
    assert nvml.opened == 1
    watch.close()
    watch.close()
    assert nvml.opened == 0


# nvmlClocksEventReasons in NVIDIA's documentation of NVML.
@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x000, ()),
        (0x001, ()),  # idle
        (0x002, ()),  # applications' clocks
        (0x004, ("SwPowerCap",)),
        (0x008, ("HwSlowdown",)),
        (0x010, ("SyncBoost",)),
        (0x020, ("SwThermalSlowdown",)),
        (0x048, ("HwSlowdown", "HwThermalSlowdown")),
        (0x088, ("HwSlowdown", "HwPowerBrakeSlowdown")),
        (0x100, ()),  # display clocks
        (1 << 40, ()),
    ],
)
def test_which_reasons_count(nvml: FakeNvml, bits: int, names: tuple[str, ...]) -> None:
    watch = gpu_watch("GPU-0")
    nvml.reasons = bits
    assert watch.now().throttled == names
    assert disturbances([Conditions(), watch.now()]) == tuple(f"slowed down: {name}" for name in names)


def test_a_slowdown_between_two_looks_shows_in_its_counter(nvml: FakeNvml) -> None:
    watch = gpu_watch("GPU-0")
    assert watch.now().throttled == ()  # what it counted before we looked is not ours
    nvml.counters[74] += 1
    nvml.counters[75] += 5000
    assert watch.now().throttled == ("power counter", "thermal counter")
    assert watch.now().throttled == ()


def test_what_a_driver_does_not_answer_is_named(nvml: FakeNvml) -> None:
    for name in (
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetComputeRunningProcesses",
    ):
        nvml.fails[name] = NVMLError(3).value
    watch = gpu_watch("GPU-0")
    assert watch.now() == Conditions(clock=1980, memory_clock=3201, temperature=41)
    missing = "power, throttle counters, processes, throttle reasons"
    assert re.fullmatch("NVML" + wording("timing.nvml-without", missing=missing), watch.source)


def test_a_single_counter_that_is_not_supported_is_left_out(nvml: FakeNvml) -> None:
    del nvml.counters[77]
    watch = gpu_watch("GPU-0")
    assert watch.now().throttled == ()


def test_other_processes_count_while_they_compute(nvml: FakeNvml) -> None:
    watch = gpu_watch("GPU-0")
    nvml.pids = [OURS, 11, 12]
    assert watch.now().others == ()  # nobody used the SMs since
    later = 10**18  # microseconds, after the watch was opened
    nvml.utilisation = [(later, OURS, 90), (later, 11, 0), (later, 12, 3)]
    assert watch.now().others == (12,)
    assert watch.now().others == ()  # that was before this look
    nvml.utilisation.append((later + 1, 11, 50))
    (reason,) = disturbances([watch.now()])
    assert re.fullmatch(wording("timing.process-computes", process=11), reason)


def test_without_utilisation_every_process_counts(nvml: FakeNvml) -> None:
    nvml.fails["nvmlDeviceGetProcessUtilization"] = nvml.NVML_ERROR_NOT_SUPPORTED
    nvml.pids = [OURS, 12, 11]
    assert gpu_watch("GPU-0").now().others == (11, 12)


class InAContainer:
    """NVML's numbers are the host's there, and ours is not among them: 900 judges and holds a context, 901 is
    ours, 902 a stranger."""

    def __init__(self, nvml: FakeNvml, *contexts: int) -> None:
        self.nvml, self.time = nvml, 10**18  # microseconds, after the watch was opened
        nvml.pids = list(contexts)
        self.watch = gpu_watch("GPU-0")

    def others(self, *working: int) -> tuple[int, ...]:
        """What the watch says after these computed."""
        self.time += 1
        self.nvml.utilisation += [(self.time, pid, 50) for pid in working]
        return self.watch.now().others


def test_in_a_container_the_only_process_that_computes_is_ours(nvml: FakeNvml) -> None:
    there = InAContainer(nvml, 900, 901)
    assert there.others() == ()
    assert there.others(901) == ()
    assert there.others(901, 902) == (902,)
    assert there.others(901) == ()
    assert there.others(900, 901) == (900,)  # whoever it is, two compute
    # A process that judges anew: it is listed, and does nothing.
    nvml.pids = [901, 903]
    assert there.others(901) == ()


def test_in_a_container_ours_is_found_whatever_its_number(nvml: FakeNvml) -> None:
    """Of two that compute one counts, from the first look on; one that came after us is never ours."""
    there = InAContainer(nvml, 900, 901)
    assert len(there.others(900, 901)) == 1
    assert there.others(900) == ()  # 900 is ours then: we compute all the time
    assert there.others(900, 901) == (901,)
    nvml.pids.append(902)
    assert there.others(902) == (902,)
    assert there.others(902, 900) == (902,)


def test_in_a_container_that_shows_no_contexts(nvml: FakeNvml) -> None:
    there = InAContainer(nvml)
    assert there.others(901) == ()
    assert there.others(900, 901) == (900,)
    assert there.others() == ()


def test_in_a_container_without_utilisation_those_count_that_came_later(nvml: FakeNvml) -> None:
    nvml.fails["nvmlDeviceGetProcessUtilization"] = nvml.NVML_ERROR_NOT_SUPPORTED
    there = InAContainer(nvml, 900, 901)
    assert there.others() == ()
    nvml.pids = [901]
    assert there.others() == ()
    nvml.pids = [901, 902]
    assert there.others() == (902,)


def test_processes_of_ours_do_not_count(nvml: FakeNvml) -> None:
    """Our parent does not, which may judge; a stranger does."""
    nvml.fails["nvmlDeviceGetProcessUtilization"] = nvml.NVML_ERROR_NOT_SUPPORTED
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        nvml.pids = [OURS, os.getppid(), child.pid]
        assert not related(2**22 + 1)  # past the largest number that Linux gives
        assert gpu_watch("GPU-0").now().others == (child.pid,)
        child.communicate(b"\n")


def test_whose_child_a_process_is_by_its_stat(tmp_path: Path) -> None:
    """proc(5): number, name in parentheses, state, parent; and the command, its words ended by zeros. Another
    program that the same shell started is a stranger."""
    worker = b"/usr/bin/python\0-m\0gdnbench.replay.worker\0003\0"
    for pid, parent, command in (
        (11, os.getppid(), worker),
        (12, 1, worker),
        (13, os.getppid(), b"/usr/bin/python\0train.py\0"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (kernel) S 1 (x) S {parent} 5 5 0 -1\n")
        (tmp_path / str(pid) / "cmdline").write_bytes(command)
    assert [pid for pid in (11, 12, 13, 14) if related(pid, tmp_path)] == [11]


def test_conditions_are_unknown_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # Python's own way to make an import fail
    watch = gpu_watch("GPU-0")
    assert re.fullmatch("unknown: " + wording("timing.nvml-package"), watch.source)
    assert watch.now() == Conditions()


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        ("nvmlInit", wording("timing.nvml-hides", gpu="GPU-0", error="Driver Not Loaded")),
        ("nvmlDeviceGetHandleByUUID", wording("timing.nvml-hides", gpu="GPU-0", error="Driver Not Loaded")),
    ],
)
def test_conditions_are_unknown_where_nvml_fails(nvml: FakeNvml, fails: str, why: str) -> None:
    nvml.fails[fails] = 9
    assert re.fullmatch(f"unknown: {why}", gpu_watch("GPU-0").source)
    assert nvml.opened == 0  # what was opened is closed again


def test_clocks_that_move_within_a_block() -> None:
    def clocks(*megahertz: int | None) -> tuple[str, ...]:
        return disturbances([Conditions(clock=clock) for clock in megahertz])

    assert clocks(1980, 1965, 1980) == ()
    assert clocks(1965, 1950, 1980) == ()  # two steps of 15 MHz
    (reason,) = clocks(1980, 1935)
    assert re.fullmatch(wording("timing.clock-moved", slack=30), reason)
    assert clocks(None, None) == ()
    assert disturbances([Conditions(memory_clock=3201), Conditions(memory_clock=2619)]) == (
        "the memory clock moved",
    )


def test_a_reason_counts_once_a_block() -> None:
    hot = Conditions(throttled=("SyncBoost",), others=(3,))
    throttled, shared = disturbances([hot, hot, hot])
    assert re.fullmatch(wording("timing.slowed-down", reason="SyncBoost"), throttled)
    assert re.fullmatch(wording("timing.process-computes", process=3), shared)


def test_extremes_keep_both_ends_and_every_reason() -> None:
    extremes = Extremes()
    looks = [
        Conditions(1980, None, 40, 300.0),
        Conditions(1950, 3201, 45, None, ("SwPowerCap",), (4,)),
        Conditions(1965, 3201, 43, 250.5, ("SyncBoost",), (2,)),
    ]
    idle = Conditions(345, 1593, 30, 70.0, ("HwSlowdown",))
    extremes.add([idle], kept=False)
    extremes.add(looks, kept=True)
    seen = extremes.summarise("here")
    assert (seen.source, seen.start, seen.end) == ("here", idle, looks[2])
    assert seen.lowest == Conditions(1950, 3201, 40, 250.5)
    assert seen.highest == Conditions(
        1980, 3201, 45, 300.0, ("HwSlowdown", "SwPowerCap", "SyncBoost"), (2, 4)
    )
    assert Extremes().summarise("nowhere").start == Conditions()


class Cpus:
    """A machine of two CPUs. Times are in seconds; others' ticks are all in `user`."""

    def __init__(self, file: Path) -> None:
        self.file, self.time, self.others = file, 50.0, 1000.0
        self.write()

    def write(self) -> None:
        ours = os.times()
        hertz = os.sysconf("SC_CLK_TCK")
        ticks = round((self.others + ours.user + ours.system) * hertz)
        self.file.write_text(f"cpu  {ticks} 0 0 900000 77 0 0 0 5 5\ncpu0 1 2\ncpu1 3 4\nintr 5 0\n")

    def on(self, seconds: float, others: float) -> None:
        self.time += seconds
        self.others += others
        self.write()

    def watch(self) -> CpuWatch:
        return CpuWatch(self.file, lambda: self.time)


def test_others_that_take_a_quarter_of_the_cpus(tmp_path: Path) -> None:
    cpus = Cpus(tmp_path / "stat")
    watch = cpus.watch()
    assert watch.source == "/proc/stat"
    assert watch.now().throttled == ()
    # Of 2 CPUs x 10 s a quarter is 5 s. Our own time moves by some ms between write and look.
    cpus.on(10.0, 4.5)
    assert watch.now().throttled == ()
    cpus.on(10.0, 5.5)
    assert watch.now().throttled == (CONTENDED,)
    (reason,) = disturbances([watch.now()])
    assert re.fullmatch(wording("timing.cpus-taken"), reason)
    cpus.on(0.05, 0.0)
    assert watch.now().throttled == (CONTENDED,)  # until a window is full
    cpus.on(10.0, 0.0)
    assert watch.now().throttled == ()
    watch.close()


@pytest.mark.parametrize("content", [None, "intr 5 0\n"])
def test_a_machine_without_proc_is_unknown(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "stat"
    if content is not None:
        file.write_text(content)
    watch = CpuWatch(file)
    assert watch.source == f"unknown: {file} says nothing of CPUs"
    assert watch.now() == Conditions()


def test_idle_and_waiting_for_a_disk_are_nobodys(tmp_path: Path) -> None:
    """proc(5): user nice system idle iowait irq softirq steal."""
    file, time = tmp_path / "stat", [0.0]
    hertz = os.sysconf("SC_CLK_TCK")

    def write(**fields: float) -> None:
        names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
        base = {"user": 1e4}
        words = [str(round((base.get(name, 0) + fields.get(name, 0)) * hertz)) for name in names]
        file.write_text(f"cpu  {' '.join(words)} 0 0\ncpu0 0\n")

    clock: Callable[[], float] = lambda: time[0]  # noqa: E731
    for name, counts in (
        ("idle", False),
        ("iowait", False),
        ("steal", True),
        ("softirq", True),
        ("nice", True),
    ):
        write()
        watch = CpuWatch(file, clock)
        time[0] += 10
        write(**{name: 9.0})
        assert bool(watch.now().throttled) == counts, name


def test_which_watch_a_device_gets() -> None:
    assert isinstance(watch_of(torch.device("cpu")), CpuWatch)
    assert UnknownWatch("so").source == "unknown: so"


@pytest.mark.gpu
def test_nvml_of_a_real_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    torch.zeros(1, device="cuda")
    watch = watch_of(torch.device("cuda", 0))
    look = watch.now()
    assert watch.source.startswith("NVML")
    assert look.clock is not None
    assert 100 < look.clock < 4000
    assert look.temperature is not None
    assert 10 < look.temperature < 100
    assert OURS not in look.others
    watch.close()
