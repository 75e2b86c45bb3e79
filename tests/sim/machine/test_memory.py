# SPDX-License-Identifier: Apache-2.0
"""Memories: bounds, alignment, windows and the uninitialised shadow."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.engine_interface import (
    LANES,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_BASE,
    SHARED_WINDOW,
)
from gdnbench.sim.machine.memory import GlobalMemory, LocalMemory, ParameterMemory, resolve, resolve_lanes
from gdnbench.sim.machine.shared_memory import SharedMemory
from gdnbench.sim.ptx.ir import Variable
from tests.sim.machine.bench import ALL, NONE, ONE

LANE = np.arange(LANES, dtype=np.uint64)


def fault(kind: FaultKind, text: str = ""):  # type: ignore[no-untyped-def]
    return pytest.raises(KernelFault, match=f"{kind}.*{text}")


def test_global_load_and_store() -> None:
    memory = GlobalMemory()
    first, second = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    source, target = memory.add_array(first, "first"), memory.add_array(second, "second")
    data = memory.load(source + 8 * LANE, ALL, 8)
    np.testing.assert_array_equal(data.view(np.float32).ravel(), first)
    memory.store(target + 8 * LANE, LANE % 2 == 0, data)
    np.testing.assert_array_equal(second.reshape(32, 2)[::2], first.reshape(32, 2)[::2])
    assert not second.reshape(32, 2)[1::2].any()


def test_lanes_of_one_access_may_reach_several_tensors() -> None:
    memory = GlobalMemory()
    arrays = [np.full(4, value, np.int32) for value in range(5)]
    bases = np.array([memory.add_array(array, f"a{i}") for i, array in enumerate(arrays)], np.uint64)
    data = memory.load(bases[np.arange(LANES) % 5], ALL, 4)
    np.testing.assert_array_equal(data.view(np.int32).ravel(), np.arange(LANES) % 5)


def test_highest_lane_wins() -> None:
    memory = GlobalMemory()
    array = np.zeros(1, np.int32)
    base = memory.add_array(array, "a")
    data = LANE.astype(np.int32).view(np.uint8).reshape(LANES, 4)
    memory.store(np.full(LANES, base, np.uint64), LANE < 7, data)
    assert array[0] == 6


def test_inactive_lanes_are_not_checked() -> None:
    memory = GlobalMemory()
    base = memory.add_array(np.ones(1, np.int32), "a")
    assert memory.load(base + 4 * LANE, ONE, 4)[0].view(np.int32) == 1
    assert not memory.load(LANE, NONE, 4).any()


@pytest.mark.parametrize(
    ("offset", "text"),
    [(-4, "4 bytes before its start"), (400, "400 bytes after its start, 4 past its end")],
)
def test_out_of_bounds_names_the_nearest_tensor(offset: int, text: str) -> None:
    memory = GlobalMemory()
    near = np.zeros(100, np.float32)
    memory.add_array(np.zeros(10, np.float32), "far")
    base = memory.add_array(near, "near")
    memory.load(np.uint64(base) + 4 * LANE, ALL, 4)
    with fault(FaultKind.OUT_OF_BOUNDS, rf"nearest is near \(400 bytes\), {text}"):
        memory.load(np.full(LANES, base + offset, np.uint64), ALL, 4)
    with fault(FaultKind.OUT_OF_BOUNDS, f"nearest is near.*{text}"):
        memory.view(base + offset, 4)


def test_memory_of_nothing() -> None:
    with fault(FaultKind.OUT_OF_BOUNDS, "no global memory"):
        GlobalMemory().load(np.full(LANES, 4096, np.uint64), ALL, 4)


def test_an_access_may_not_reach_over_the_end() -> None:
    memory = GlobalMemory()
    base = memory.add_array(np.zeros(6, np.float32), "a")
    memory.load(np.full(LANES, base + 16, np.uint64), ALL, 8)
    with fault(FaultKind.OUT_OF_BOUNDS):
        memory.load(np.full(LANES, base + 16, np.uint64), ALL, 16)


@pytest.mark.parametrize("width", [1, 4, 16])
def test_an_access_at_the_end_of_the_address_space_does_not_wrap(width: int) -> None:
    memory = GlobalMemory()
    memory.add_array(np.zeros(64, np.uint8), "a")
    with fault(FaultKind.OUT_OF_BOUNDS, hex((1 << 64) - width)):
        memory.load(np.full(LANES, (1 << 64) - width, np.uint64), ALL, width)
    with fault(FaultKind.OUT_OF_BOUNDS, hex((1 << 64) - width)):
        memory.check((1 << 64) - width, width)


def test_parameters_are_bounded_and_read_only() -> None:
    memory = ParameterMemory(bytes(range(24)))
    assert memory.load(np.full(LANES, 20, np.uint64), ALL, 4)[0].tolist() == [20, 21, 22, 23]
    for address in (24, 1 << 63, (1 << 64) - 8):
        with fault(FaultKind.OUT_OF_BOUNDS, f"parameter offset {address:#x}: the kernel has 24 bytes"):
            memory.load(np.full(LANES, address, np.uint64), ONE, 8)
    with fault(FaultKind.OUT_OF_BOUNDS, "the kernel has 2 bytes"):
        ParameterMemory(bytes(2)).load(np.zeros(LANES, np.uint64), ONE, 8)
    with fault(FaultKind.OUT_OF_BOUNDS, "a store to the kernel's parameters"):
        memory.store(np.zeros(LANES, np.uint64), ONE, np.zeros((LANES, 8), np.uint8))


def test_overlapping_views_are_one_allocation() -> None:
    memory = GlobalMemory()
    packed = np.arange(24, dtype=np.int64)
    memory.add_array(packed[:16], "q")
    memory.add_array(packed[8:], "k")
    assert len(memory.bases) == 1
    assert memory.view(packed.ctypes.data, packed.nbytes).view(np.int64)[-1] == 23


def test_variables() -> None:
    memory = GlobalMemory()
    table = Variable("table", "global", 64, 128, 0, b"\1\2")
    memory.add_variables([table, Variable("tile", "shared", 64, 128, 0), Variable("c", "const", 8, 8, 0)])
    base = memory.symbols["table"]
    assert base % 128 == 0
    assert memory.view(base, 4).tolist() == [1, 2, 0, 0]
    assert memory.symbols.keys() == {"table", "c"}
    memory.view(base, 1)[0] = 7
    memory.add_variables([table])  # the next launch of the module
    assert memory.symbols["table"] == base
    assert len(memory.allocations) == 2
    assert memory.view(base, 1)[0] == 7


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_misaligned(width: int) -> None:
    memory, shared, local = GlobalMemory(), SharedMemory(1024, track=False), LocalMemory(64)
    base = memory.add_array(np.zeros(64, np.complex128), "a")
    for space, start in ((memory, base), (shared, SHARED_BASE), (local, 0)):
        good = np.full(LANES, start, np.uint64)
        space.load(good, ALL, width)
        with fault(FaultKind.MISALIGNED, f"of lane 0 is no multiple of {width}"):
            space.load(good + np.uint64(width // 2), ALL, width)


def test_shared_bounds() -> None:
    shared = SharedMemory(256, track=False)
    shared.store(SHARED_BASE + 8 * LANE, ALL, np.zeros((LANES, 8), np.uint8))
    for address in (SHARED_BASE - 8, SHARED_BASE + 256, 0, 1 << 40):
        with fault(FaultKind.OUT_OF_BOUNDS, "the CTA has 256 bytes"):
            shared.store(np.full(LANES, address, np.uint64), ONE, np.zeros((LANES, 8), np.uint8))


def test_uninitialised_shared_memory() -> None:
    shared = SharedMemory(256, track=True)
    shared.store(np.full(LANES, SHARED_BASE, np.uint64), ONE, np.zeros((LANES, 4), np.uint8))
    shared.load(np.full(LANES, SHARED_BASE, np.uint64), ALL, 4)
    with fault(FaultKind.UNINITIALISED, hex(SHARED_BASE + 4)):
        shared.load(np.full(LANES, SHARED_BASE, np.uint64), ALL, 8)


def test_unwritten_shared_memory_is_nan() -> None:
    shared = SharedMemory(256, track=False)
    assert np.isnan(shared.load(np.full(LANES, SHARED_BASE, np.uint64), ALL, 4).view(np.float32)).all()


def test_local_memory_is_a_lanes_own() -> None:
    local = LocalMemory(16)
    zero = np.zeros(LANES, np.uint64)
    local.store(zero + np.uint64(8), ALL, LANE.astype(np.uint32).view(np.uint8).reshape(LANES, 4))
    np.testing.assert_array_equal(local.load(zero + np.uint64(8), ALL, 4).view(np.uint32).ravel(), LANE)
    with fault(FaultKind.OUT_OF_BOUNDS, "a thread has 16 bytes"):
        local.load(zero + np.uint64(16), ALL, 4)


def test_generic_windows() -> None:
    assert resolve(SHARED_WINDOW + 1030) == ("shared", 1030)
    assert resolve(LOCAL_WINDOW + 4) == ("local", 4)
    assert resolve(PARAM_WINDOW) == ("param", 0)
    assert resolve(0x7FFF_1234_5678) == ("global", 0x7FFF_1234_5678)
    bases = np.array([SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, 0x5555_0000_0000], np.uint64)
    found = {
        space: (lanes.nonzero()[0].tolist(), addresses)
        for space, lanes, addresses in resolve_lanes(bases[np.arange(LANES) % 4] + LANE, LANE < 8)
    }
    assert [found[space][0] for space in ("shared", "local", "param", "global")] == [
        [0, 4],
        [1, 5],
        [2, 6],
        [3, 7],
    ]
    assert found["shared"][1][4] == 4
    assert found["global"][1][7] == 0x5555_0000_0007
