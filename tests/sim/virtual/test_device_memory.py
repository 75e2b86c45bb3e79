# SPDX-License-Identifier: Apache-2.0
"""The virtual GPU's memory: alignment, gaps, and what is live."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.virtual import VirtualGpu
from gdnbench.sim.virtual.device_memory import DeviceMemory
from tests.messages import wording


def test_allocations_are_aligned_apart_and_live_as_long_as_their_arrays() -> None:
    memory = DeviceMemory()
    blocks = [memory.allocate(size) for size in (1, 511, 512, 4000)]
    addresses = sorted(int(block.ctypes.data) for block in blocks)
    assert all(address % 512 == 0 for address in addresses)
    regions = sorted(memory.regions(), key=lambda region: region.address)
    assert [region.address for region in regions] == addresses
    ends = [region.address + region.size for region in regions]
    assert all(start > end for start, end in zip(addresses[1:], ends, strict=False))
    assert memory.allocated == 1 + 511 + 512 + 4000
    del blocks[3], regions
    gc.collect()
    assert len(memory.regions()) == 3
    assert (memory.allocated, memory.peak) == (1 + 511 + 512, 1 + 511 + 512 + 4000)


def test_spans_lie_in_one_allocation() -> None:
    memory = DeviceMemory()
    block = memory.allocate(100)
    block[:] = range(100)
    address = int(block.ctypes.data)
    assert memory.span(address + 10, 5).tolist() == [10, 11, 12, 13, 14]
    for start, size in ((address, 101), (address - 1, 2), (address + 100, 1)):
        with pytest.raises(LaunchError, match=wording("sim.virtual.no-allocation", size=size)):
            memory.span(start, size)


def test_an_empty_allocation_is_no_region() -> None:
    memory = DeviceMemory()
    assert memory.allocate(0).size == 0
    assert memory.regions() == []


def test_no_more_memory_than_there_is() -> None:
    memory = DeviceMemory(1000)
    block = memory.allocate(600)
    with pytest.raises(MemoryError, match=wording("sim.virtual.out-of-memory", size=401, capacity=1000)):
        memory.allocate(401)
    assert memory.allocate(400).size == 400
    assert block.size == memory.peak - 400
    with pytest.raises(MemoryError, match=wording("sim.virtual.cpu-out-of-memory", allocated=0)):
        DeviceMemory().allocate(1 << 62)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # Python 3.12, with threads
def test_a_fork_during_a_launch_has_locks_of_its_own(gpu: VirtualGpu) -> None:
    """The thread that launches holds them, and does not exist in the child."""
    held, done = threading.Event(), threading.Event()

    def launch() -> None:
        with gpu._lock, gpu.memory._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=launch)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        gpu.memory.allocate(1)
        gpu.load_module(".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n")
        os._exit(7)
    done.set()
    thread.join()
    for _ in range(200):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child waits for a lock")
    assert os.waitstatus_to_exitcode(status) == 7
