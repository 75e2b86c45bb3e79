# SPDX-License-Identifier: Apache-2.0
"""Launches under several schedules: kernels of a few lines of PTX whose results the PTX ISA fixes or leaves
open.

`cp.async` without a wait: a read of its destination may come before or after the copy lands (PTX ISA,
"cp.async"). The simulator shows that as poison under `late` and the copied value under `early`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from gdnbench.sim import Settings
from gdnbench.sim.errors import FaultKind, InputError, KernelFault
from gdnbench.sim.host.arguments import Region
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.virtual import (
    ExploredLaunch,
    LaunchChoice,
    LaunchExplorer,
    VirtualGpu,
    explored_summary,
    explored_text,
    schedule_and_engine,
    virtual_gpu,
)
from tests.messages import wording

# Copies a word of x through shared memory to y, at the place that @INDEX@ has by then; the wait is @WAIT@.
PTX = """
.version 8.8
.target sm_100a
.address_size 64
.file 1 "kernel.py"
.visible .entry copy(.param .u64 x, .param .u64 y)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<5>;
  .shared .align 16 .b8 tile[16];
  .loc 1 10 0
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  mov.u32 %r1, tile;
  .loc 1 12 0
  cp.async.ca.shared.global [%r1], [%rd1], 4;
  @WAIT@
  .loc 1 14 0
  ld.shared.u32 %r2, [%r1];
  @INDEX@
  .loc 1 17 0
  st.global.u32 [%rd2], %r2;
  ret;
}
.visible .entry count(.param .u64 y)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [y];
  atom.global.add.u32 %r1, [%rd1], 1;
  ret;
}
"""
WAIT = "cp.async.wait_all;"
SCATTER = "mul.wide.u32 %rd3, %r2, 4;\n  add.s64 %rd2, %rd2, %rd3;"  # y[x[0]]
SCHEDULES = ("late", "early", "random:1")


class Launches:
    """A GPU whose launches are explored: `x` = [2, 0, ...] and `y` = 7s, of four words each."""

    def __init__(self, gpu: VirtualGpu, **options: Any) -> None:
        self.gpu = gpu
        self.explored: list[ExploredLaunch] = []
        self.blocks = [gpu.memory.allocate(16) for _ in range(2)]  # live as long as these arrays
        self.x, self.y = (block.view(np.uint32) for block in self.blocks)
        self.x[:], self.y[:] = [2, 0, 0, 0], 7
        gpu.explorer = LaunchExplorer(SCHEDULES, self.explored.append, **options)

    def run(self, kernel: str = "copy", wait: str = "", index: str = "") -> None:
        module = parse(PTX.replace("@WAIT@", wait).replace("@INDEX@", index))
        arrays = (self.x, self.y) if kernel == "copy" else (self.y,)
        params = tuple(int(array.ctypes.data).to_bytes(8, "little") for array in arrays)
        named = [Region("y", int(self.y.ctypes.data), self.y.nbytes, self.y)]
        one = (1, 1, 1)
        self.gpu.run(module, [LaunchRequest("", kernel, one, one, one, 0, params, None, 0)], named)


def test_bytes_that_depend_on_the_schedule_are_named(gpu: VirtualGpu) -> None:
    launches = Launches(gpu)
    launches.run()  # the launch
    (explored,) = launches.explored
    assert explored.depends
    assert (explored.number, explored.schedules) == (0, SCHEDULES)
    assert explored.origin is not None
    assert "test_explore_launches.py" in explored.origin
    difference = explored.difference
    assert difference is not None
    assert (difference.tensor, difference.schedule, difference.against) == ("y", "early", "late")
    assert not difference.unsteady
    assert "0x02 under early" in difference.place  # the low byte of x[0]
    assert difference.place.startswith("byte 0 is ")
    assert difference.lines == (f"kernel.py:17 (PTX line {_line_of('st.global')})",)
    assert launches.y.tolist()[1:] == [7, 7, 7]
    assert launches.y[0] != 2  # the program goes on with what late left
    ((first, text),) = explored_text(launches.explored)
    assert first is explored
    assert "depends on the schedule" in text
    assert "kernel.py:17" in text
    assert ExploredLaunch.from_json(explored.as_json()) == explored
    assert explored_summary(launches.explored, SCHEDULES).endswith("1 of them depends on the schedule")


def _line_of(text: str) -> int:
    lines = PTX.replace("@WAIT@", "").replace("@INDEX@", "").split("\n")
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_an_element_of_a_tensor_is_named_with_both_values(gpu: VirtualGpu) -> None:
    x, y = torch.full((1,), 1.5, device="cuda"), torch.zeros(3, 2, device="cuda").T
    explored: list[ExploredLaunch] = []
    gpu.explorer = LaunchExplorer(("early", "late"), explored.append)
    # The kernel stores to y[1, 2], whose strides are 1 and 2: the fifth element after the first.
    params = [x.data_ptr().to_bytes(8, "little"), (y.data_ptr() + 20).to_bytes(8, "little")]
    one = (1, 1, 1)
    request = LaunchRequest("", "copy", one, one, one, 0, tuple(params), None, 0)
    module = gpu.load_module(PTX.replace("@WAIT@", "").replace("@INDEX@", ""))
    gpu.run(module, [request], [Region("y", y.data_ptr(), 0, y)])
    difference = explored[0].difference
    assert difference is not None
    assert difference.tensor == "y"
    assert difference.place == "element [1, 2] is 1.5 under early and nan under late"
    assert y.tolist() == [[0, 0, 0], [0, 0, 1.5]]


def test_a_right_kernel_leaves_equal_bits(gpu: VirtualGpu) -> None:
    launches = Launches(gpu)
    launches.run(wait=WAIT)
    (explored,) = launches.explored
    assert not explored.failed
    assert launches.y.tolist() == [2, 7, 7, 7]
    assert explored_text(launches.explored) == []
    assert re.fullmatch(
        wording("sim.virtual.explored", count=1, schedules=", ".join(SCHEDULES), result="equal bits"),
        explored_summary(launches.explored, SCHEDULES),
    )


def test_a_launch_in_both_engines(gpu: VirtualGpu) -> None:
    """The interpreter stops at a register that was never written; compiled code reads some value."""
    launches = Launches(gpu, engines=("compiled", "interpreter"))
    launches.run(wait=WAIT)
    launches.run(wait=WAIT, index="add.u32 %r2, %r2, %r3;")
    right, wrong = launches.explored
    names = (*SCHEDULES, *(f"interpreter {one}" for one in SCHEDULES))
    assert right.schedules == wrong.schedules == names
    assert not right.failed
    (some,) = wrong.findings
    assert (some.under, some.not_under) == (names[3:], SCHEDULES)
    assert "depends on the schedule or the engine" in explored_text(launches.explored)[0][1]
    assert explored_summary(launches.explored, names).endswith(
        "1 of them depends on the schedule or the engine"
    )
    assert [schedule_and_engine(one) for one in names[2:4]] == [("random:1", None), ("late", "interpreter")]


def test_every_run_begins_with_the_same_memory(gpu: VirtualGpu) -> None:
    launches = Launches(gpu)
    launches.run("count")
    launches.run("count")
    assert launches.y.tolist() == [9, 7, 7, 7]  # once for each launch, not for each run
    assert [one.failed for one in launches.explored] == [False, False]
    assert [one.number for one in launches.explored] == [0, 1]


def test_a_fault_under_some_schedules_alone(gpu: VirtualGpu) -> None:
    launches = Launches(gpu)
    with pytest.raises(KernelFault) as fault:  # late: the index is poison
        launches.run(index=SCATTER)
    assert fault.value.kind is FaultKind.OUT_OF_BOUNDS
    (explored,) = launches.explored
    (some,) = explored.findings
    assert some.is_fault
    assert (some.under[0], some.not_under[0]) == ("late", "early")
    assert explored.depends
    assert explored.difference is None  # late was stopped: there are no bytes to compare
    assert some.finding.line == 17


def test_a_launch_with_too_much_memory_is_not_explored(gpu: VirtualGpu) -> None:
    launches = Launches(gpu, most_bytes=31)
    launches.run("count")
    (explored,) = launches.explored
    assert launches.y[0] == 8
    assert re.search(wording("sim.virtual.too-much-memory", size=32, most=31), explored.refused)
    assert re.search("1 not under all of them", explored_summary([explored], SCHEDULES))


def test_only_chosen_launches_are_explored_and_checked() -> None:
    with virtual_gpu("b200", settings=Settings(schedule="early", check=True)) as gpu:
        launches = Launches(gpu)
        gpu.choice = LaunchChoice.parse("1,copy")
        launches.run("count")
        launches.run("count")
        launches.run()
        assert [one.number for one in launches.explored] == [1, 2]
        assert [report.launches[0].found is not None for report in gpu.reports] == [False, True, True]
        gpu.explorer = None
        gpu.choice = LaunchChoice.parse("3")
        launches.run()
        assert launches.y[0] == 2  # under early
        launches.run()
        assert launches.y[0] != 2  # late: it is not chosen


@pytest.mark.parametrize(
    ("text", "number", "kernel", "included"),
    [
        ("3", 3, "a", True),
        ("3", 2, "a", False),
        ("0-2,7", 2, "a", True),
        ("0-2,7", 3, "a", False),
        ("chunk_fwd", 9, "kernel_chunk_fwd_h", True),
        ("chunk*h,1", 9, "kernel_chunk_fwd_h", True),
        ("chunk*o", 9, "kernel_chunk_fwd_h", False),
    ],
)
def test_launches_are_chosen_by_number_and_name(text: str, number: int, kernel: str, included: bool) -> None:
    assert LaunchChoice.parse(text).includes(number, kernel) is included


@pytest.mark.parametrize("text", ["", "3,", "5-2"])
def test_a_choice_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=wording("sim.virtual.launches", text=text)):
        LaunchChoice.parse(text)
