"""The virtual GPU's memory: alignment, gaps, and what is live."""

from __future__ import annotations

import gc

import pytest

from gdnbench.sim.errors import LaunchError
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
