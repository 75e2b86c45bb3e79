# SPDX-License-Identifier: Apache-2.0
"""Tensor memory itself: allocation, its faults, and the faults of loads, stores and copies."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.engine_interface import SHARED_BASE, Wait
from tests.messages import wording
from tests.sim.tcgen05.cute_layouts import shared_layout
from tests.sim.tcgen05.products import Operand, instruction_descriptor, matrix_descriptor
from tests.sim.tcgen05.tensor_machine import ONE, Machine

SLOT = SHARED_BASE + 8


def test_allocation_writes_the_address_to_shared_memory() -> None:
    machine = Machine()
    assert [machine.alloc(columns) for columns in (256, 128, 32)] == [0, 256, 384]
    machine.dealloc(256, 128)
    assert machine.alloc(32) == 256
    for address, columns in ((0, 256), (384, 32), (256, 32)):
        machine.dealloc(address, columns)
    machine.cta.tmem.at_exit()


@pytest.mark.parametrize("columns", [0, 16, 48, 96, 1024])
def test_sizes_are_powers_of_two_from_32_to_512(columns: int) -> None:
    with pytest.raises(KernelFault, match=f"{columns} columns") as caught:
        Machine().alloc(columns)
    assert caught.value.kind is FaultKind.TMEM_ALLOCATION


def test_sizes_must_not_increase() -> None:
    """PTX ISA 9.7.16.7.1."""
    machine = Machine()
    machine.alloc(32)
    with pytest.raises(KernelFault, match=wording("sim.machine.alloc-size-grows")):
        machine.alloc(64)


def test_a_full_memory_blocks_until_something_is_freed() -> None:
    machine = Machine()
    machine.alloc(256)
    machine.alloc(256)
    text = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r], 256;"
    wait = machine.issue(text, r=SLOT, warp=1)
    assert isinstance(wait, Wait)
    assert not wait.ready()
    allocated = re.compile(wording("sim.machine.allocated", columns="0..255, 256..511"))
    waits = wording("sim.machine.alloc-waits", columns=256, allocations=allocated)
    assert re.fullmatch(waits, wait.text())
    machine.dealloc(0, 256)
    assert wait.ready()
    assert machine.alloc(256) == 0


def test_allocation_after_relinquishing() -> None:
    machine = Machine()
    machine.alloc(32)
    machine.issue("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;")
    with pytest.raises(KernelFault, match=wording("sim.machine.alloc-after-relinquish")) as caught:
        machine.alloc(32)
    assert caught.value.kind is FaultKind.TMEM_ALLOCATION


@pytest.mark.parametrize(("address", "columns"), [(0, 32), (32, 64), (1 << 16, 64), (64, 64)])
def test_only_what_was_allocated_is_freed(address: int, columns: int) -> None:
    machine = Machine()
    machine.alloc(64)
    with pytest.raises(
        KernelFault, match=wording("sim.machine.dealloc-unallocated", allocations="allocated columns: 0..63")
    ) as caught:
        machine.dealloc(address, columns)
    assert caught.value.kind is FaultKind.TMEM_ALLOCATION


def test_leak() -> None:
    machine = Machine()
    machine.alloc(64)
    with pytest.raises(KernelFault, match=r"allocated columns: 0\.\.63") as caught:
        machine.cta.tmem.at_exit()
    assert caught.value.kind is FaultKind.TMEM_LEAK


def test_freeing_what_a_product_still_writes() -> None:
    machine = Machine()
    machine.alloc(64)
    layout = shared_layout("SW32", "bf16", False, 64, 16)
    operand = Operand(layout, 16 * 1024, "bf16")
    operand.put(machine, np.zeros((64, 16)))
    idesc = instruction_descriptor("bf16", "bf16", 64, 64)
    machine.mma("f16", 0, operand.descriptor(0), operand.descriptor(0), idesc)
    with pytest.raises(KernelFault, match=wording("sim.machine.dealloc-in-flight")):
        machine.dealloc(0, 64)
    machine.finish()
    machine.dealloc(0, 64)


@pytest.mark.parametrize("address", [60, 64, 508])
def test_access_past_the_allocation(address: int) -> None:
    machine = Machine()
    machine.alloc(64)
    with pytest.raises(
        KernelFault, match=wording("sim.machine.tmem-outside", first=address, held="allocated columns: 0..63")
    ) as caught:
        machine.store("32x32b", 8, address, np.zeros((32, 8), np.uint32))
    assert caught.value.kind is FaultKind.TMEM_ACCESS
    with pytest.raises(KernelFault, match=wording("sim.machine.tmem-outside", first=address)):
        machine.load("32x32b", 8, address)


def test_access_after_dealloc() -> None:
    machine = Machine()
    machine.alloc(64)
    machine.store("32x32b", 1, 0, np.zeros((32, 1), np.uint32))
    machine.dealloc(0, 64)
    with pytest.raises(KernelFault, match=wording("sim.machine.tmem-unallocated")) as caught:
        machine.load("32x32b", 1, 0)
    assert caught.value.kind is FaultKind.TMEM_ACCESS


def test_another_warps_quarter() -> None:
    machine = Machine()
    machine.alloc(32)
    with pytest.raises(KernelFault, match=wording("sim.machine.tmem-lane", first=32, last=63)) as caught:
        machine.load("32x32b", 1, 64 << 16, warp=1)
    assert caught.value.kind is FaultKind.TMEM_ACCESS


@pytest.mark.parametrize(("shape", "lane"), [("32x32b", 16), ("16x256b", 8), ("16x64b", 1)])
def test_lanes_within_a_quarter(shape: str, lane: int) -> None:
    machine = Machine()
    machine.alloc(32)
    with pytest.raises(KernelFault, match=wording("sim.machine.tmem-quarter")):
        machine.load(shape, 1, lane << 16)


def test_uninitialised_cells() -> None:
    machine = Machine()
    machine.alloc(32)
    machine.store("32x32b", 2, 0, np.zeros((32, 2), np.uint32))
    machine.load("32x32b", 2, 0)
    with pytest.raises(KernelFault, match=wording("sim.machine.tmem-unwritten", lane=0, column=2)) as caught:
        machine.load("32x32b", 4, 0)
    assert caught.value.kind is FaultKind.UNINITIALISED


def test_an_address_that_differs_between_lanes() -> None:
    machine = Machine()
    machine.alloc(32)
    with pytest.raises(KernelFault, match=wording("sim.compiler.address-of")) as caught:
        machine.load("32x32b", 1, np.arange(32))
    assert caught.value.kind is FaultKind.DIVERGENCE


def test_a_warp_must_load_together() -> None:
    machine = Machine()
    machine.alloc(32)
    with pytest.raises(KernelFault, match=wording("sim.machine.lanes-missing")) as caught:
        machine.issue("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%o}, [%r];", lanes=ONE, r=0)
    assert caught.value.kind is FaultKind.DIVERGENCE


# tcgen05.cp: where the copy atoms of CUTLASS put row r (SM100_UTCCP_*), written out lane by lane.
WHERE = {
    "128x256b": {r: [r] for r in range(128)},
    "128x128b": {r: [r] for r in range(128)},
    "64x128b.warpx2::02_13": {r: [r, r + 64] for r in range(64)},
    "64x128b.warpx2::01_23": {r: [r, r + 32] if r < 32 else [r + 32, r + 64] for r in range(64)},
    "32x128b.warpx4": {r: [r, r + 32, r + 64, r + 96] for r in range(32)},
    "4x256b": {r: [32 * r + 5] for r in range(4)},
}


@pytest.mark.parametrize("kind", ["INTER", "SW32", "SW64", "SW128"])
@pytest.mark.parametrize("shape", WHERE)
def test_copy_from_shared_memory(shape: str, kind: str) -> None:
    """Rows of 16 or 32 bytes in a canonical K-major layout, 128 bytes past an alignment of 1024."""
    rows, words = max(8, len(WHERE[shape])), 8 if "256b" in shape else 4
    machine = Machine()
    machine.alloc(32)
    layout = shared_layout(kind, "tf32", False, rows, 32)
    data = np.random.default_rng(2).integers(0, 2**32, (rows, 32), np.uint32)
    address = layout.addresses(16 * 1024 + 128)
    machine.cta.shared.bytes[address] = data[..., None].view(np.uint8)
    machine.cta.shared.valid[address] = True
    code = {"INTER": 0, "SW32": 6, "SW64": 4, "SW128": 2}[kind]
    descriptor = matrix_descriptor(16 * 1024 + 128, *layout.strides(), code)
    lane = 5 if shape == "4x256b" else 0
    machine.issue(f"tcgen05.cp.cta_group::1.{shape} [%r], %d;", lanes=ONE, r=lane << 16 | 16, d=descriptor)
    machine.cta.tmem.track = False
    assert (machine.load("32x32b", 4, 16) == 0xFFFF_FFFF)[lane].all()
    machine.finish()
    cells, valid = machine.cta.tmem.cells, machine.cta.tmem.valid
    written = np.zeros_like(valid)
    for row, lanes in WHERE[shape].items():
        for at in lanes:
            np.testing.assert_array_equal(cells[at, 16 : 16 + words], data[row, :words])
            written[at, 16 : 16 + words] = True
    np.testing.assert_array_equal(valid, written)


@pytest.mark.parametrize("kind", ["INTER", "SW128"])
@pytest.mark.parametrize("shape", ["128x256b", "128x128b", "32x128b.warpx4"])
@pytest.mark.parametrize(("source", "bits", "low"), [("b4x16_p64", 4, 2), ("b6x16_p32", 6, 1)])
def test_copy_with_decompression(source: str, bits: int, low: int, shape: str, kind: str) -> None:
    """16 codes at the start of 16 bytes, low bits first, become the middle of a byte each (PTX ISA 9.0,
    9.7.16.9.1; CUTLASS `cp_narrow_a_to_tmem_mma.py`). Nobody writes the padding."""
    rows, size = len(WHERE[shape]), 32 if "256b" in shape else 16
    machine = Machine()
    machine.alloc(32)
    layout = shared_layout(kind, "e4m3", False, rows, 128)
    codes = np.random.default_rng(3).integers(0, 1 << bits, (rows, 8, 16), np.uint8)
    numbers = [sum(int(code) << bits * i for i, code in enumerate(chunk)) for chunk in codes.reshape(-1, 16)]
    packed = [number.to_bytes(2 * bits, "little") for number in numbers]
    chunks = np.frombuffer(b"".join(packed), np.uint8).reshape(rows, 8, 2 * bits)
    address = layout.addresses(16 * 1024)[..., 0].reshape(rows, 8, 16)[..., : 2 * bits]
    machine.cta.shared.bytes[address] = chunks
    machine.cta.shared.valid[address] = True
    code = {"INTER": 0, "SW128": 2}[kind]
    descriptor = matrix_descriptor(16 * 1024, *layout.strides(), code)
    machine.issue(f"tcgen05.cp.cta_group::1.{shape}.b8x16.{source} [%r], %d;", lanes=ONE, r=8, d=descriptor)
    machine.finish()
    cells = machine.cta.tmem.cells[:, 8 : 8 + size // 4].copy().view(np.uint8)
    for row, lanes in WHERE[shape].items():
        for at in lanes:
            np.testing.assert_array_equal(cells[at], codes[row].reshape(-1)[:size] << low)


@pytest.mark.parametrize("text", ["tcgen05.shift.cta_group::1.down [%r];"])
def test_shift_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"tcgen05\.shift"):
        Machine().issue(text, lanes=ONE, r=0)
