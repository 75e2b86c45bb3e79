# SPDX-License-Identifier: Apache-2.0
"""Bulk tensor copies against a byte-by-byte model (tma_model.py)."""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.engine_interface import PARAM_WINDOW, SHARED_BASE, Wait
from gdnbench.sim.machine.memory import GlobalMemory
from tests.messages import wording
from tests.sim.machine.bench import ALL, Bench, play, step
from tests.sim.machine.tma_model import SIZES, Map, swizzled

BAR = SHARED_BASE
TILE = SHARED_BASE + 1024


def load_text(rank: int, extra: str = "") -> str:
    where = ", ".join(f"%c{i}" for i in range(rank))
    return (
        f"cp.async.bulk.tensor.{rank}d.shared::cta.global.tile.mbarrier::complete_tx::bytes{extra} "
        f"[%s], [%d1, {{{where}}}], [%b]"
    )


def store_text(rank: int, operation: str = "cp.async.bulk.tensor", reduction: str = "") -> str:
    where = ", ".join(f"%c{i}" for i in range(rank))
    return f"{operation}.{rank}d.global.shared::cta{reduction}.tile.bulk_group [%d1, {{{where}}}], [%s]"


def corner(where: tuple[int, ...]) -> dict[str, int]:
    """Coordinates as registers: negative ones in two's complement of 32 bits."""
    return {f"c{i}": value & 0xFFFF_FFFF for i, value in enumerate(where)}


class Tensor:
    """A tensor with its map, in a memory with guard bytes around it."""

    def __init__(
        self,
        rng: random.Random,
        dtype: str,
        dims: tuple[int, ...],
        box: tuple[int, ...],
        swizzle: int,
        pad: int = 16,
    ) -> None:
        strides, stride = [], dims[0] * SIZES[dtype]
        for extent in dims[1:]:
            stride = -(-stride // 16) * 16 + pad
            strides.append(stride)
            stride *= extent
        self.bytes = np.frombuffer(rng.randbytes(stride + 128), np.uint8).copy()
        base = -(-self.bytes.ctypes.data // 16) * 16
        self.map = Map(base, dtype, dims, tuple(strides), box, swizzle)
        self.memory = GlobalMemory()
        self.memory.add_array(self.bytes, "tensor")

    def at(self, address: int) -> int:
        return address - self.bytes.ctypes.data

    def bench(self, **options: object) -> Bench:
        return Bench(param=self.map.encode(), memory=self.memory, shared=128 * 1024, **options)


def expected_load(tensor: Tensor, shared: int, where: tuple[int, ...]) -> dict[int, int]:
    return {
        to: 0 if source is None else int(tensor.bytes[tensor.at(source)])
        for to, source in tensor.map.walk(shared, where)
    }


def load(bench: Bench, tensor: Tensor, where: tuple[int, ...], shared: int = TILE) -> None:
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    bench.issue("mbarrier.arrive.expect_tx.shared.b64 _, [%b], %n", b=BAR, n=tensor.map.box_bytes)
    text = load_text(len(tensor.map.dims))
    bench.issue(text, s=shared, d1=PARAM_WINDOW, b=BAR, **corner(where))
    bench.cta.queue.drain()
    assert bench.shared.phase[BAR // 8] == 1, "the full box completes the phase"


CASES = [
    # dtype, dims, box, swizzle, corner
    ("bf16", (256,), (64,), 0, (32,)),
    ("bf16", (100, 37), (64, 16), 128, (0, 0)),
    ("bf16", (100, 37), (64, 16), 128, (64, 30)),
    ("bf16", (100, 37), (64, 16), 128, (-8, -3)),
    ("bf16", (100, 37), (64, 16), 128, (200, 0)),
    ("f16", (70, 50), (32, 24), 64, (32, 40)),
    ("f32", (24, 50), (8, 40), 32, (16, 20)),
    ("u8", (300, 9), (128, 4), 128, (256, 7)),
    ("f32", (40, 11), (20, 5), 0, (28, -2)),
    ("bf16", (64, 3, 29), (64, 2, 8), 128, (0, 2, 25)),
    ("bf16", (64, 1, 300, 2), (64, 1, 16, 2), 128, (0, 0, 290, 0)),
    ("u32", (36, 3, 4, 5), (8, 2, 3, 2), 32, (32, -1, 3, 4)),
    ("f16", (40, 3, 4, 2, 3), (8, 2, 2, 2, 2), 0, (32, 2, -1, 1, 2)),
    ("bf16", (60, 20), (32, 6), 128, (32, 9)),  # rows of half a swizzle span
    ("f32", (25, 20), (4, 6), 64, (24, 9)),
    ("bf16", (96, 2, 3, 2, 2), (32, 2, 2, 2, 1), 64, (64, 0, 2, 0, 1)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{len(case[1])}d-sw{case[3]}-{case[4]}")
@pytest.mark.parametrize("offset", [0, 128, 256, 512])
def test_load(case: tuple, offset: int) -> None:  # type: ignore[type-arg]
    dtype, dims, box, swizzle, where = case
    tensor = Tensor(random.Random(1), dtype, dims, box, swizzle)
    bench = tensor.bench()
    before = bench.shared.bytes.copy()
    load(bench, tensor, where, TILE + offset)
    inside = sum(source is not None for _, source in tensor.map.walk(TILE + offset, where))
    assert bench.cta.counters.traffic["global to shared"] == inside
    want = before
    for to, value in expected_load(tensor, TILE + offset, where).items():
        want[to] = value
    want[BAR : BAR + 8] = bench.shared.bytes[BAR : BAR + 8]
    np.testing.assert_array_equal(bench.shared.bytes, want)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{len(case[1])}d-sw{case[3]}-{case[4]}")
@pytest.mark.parametrize("offset", [0, 128, 512])
def test_store_clips(case: tuple, offset: int) -> None:  # type: ignore[type-arg]
    dtype, dims, box, swizzle, where = case
    where = tuple(max(0, start) for start in where)  # a store below zero is illegal
    rng = random.Random(2)
    tensor = Tensor(rng, dtype, dims, box, swizzle)
    bench = tensor.bench()
    size = 16 * 1024
    shared = TILE + offset
    bench.shared.bytes[shared : shared + size] = np.frombuffer(rng.randbytes(size), np.uint8)
    bench.shared.written(shared, size)
    want = tensor.bytes.copy()
    for source, to in tensor.map.walk(shared, where, store=True):
        if to is not None:
            want[tensor.at(to)] = bench.shared.bytes[source]
    bench.issue(store_text(len(dims)), s=shared, d1=PARAM_WINDOW, **corner(where))
    bench.cta.queue.drain()
    np.testing.assert_array_equal(tensor.bytes, want)
    inside = sum(to is not None for _, to in tensor.map.walk(shared, where, store=True))
    assert bench.cta.counters.traffic["shared to global"] == inside


def test_random_maps() -> None:
    """Any rank, type, swizzle, box and corner."""
    rng = random.Random(3)
    for _ in range(60):
        rank, swizzle = rng.randint(1, 5), rng.choice((0, 32, 64, 128))
        dtype = rng.choice(tuple(SIZES))
        unit = 16 // SIZES[dtype]
        row = unit * rng.randint(1, swizzle // 16 if swizzle else 4)
        box = (row, *(rng.randint(1, 4) for _ in range(rank - 1)))
        dims = (row * rng.randint(1, 2) + rng.randint(0, 7), *(rng.randint(1, 6) for _ in range(rank - 1)))
        where = tuple(rng.randint(-extent, extent + 1) for extent in dims)
        where = (where[0] // unit * unit, *where[1:])
        tensor = Tensor(rng, dtype, dims, box, swizzle, pad=rng.choice((0, 16, 48)))
        steps = tuple(rng.choice((1, 1, 2, 3)) for _ in range(rank))
        atom = rng.choice((16, 32, 64)) if swizzle == 128 else 16
        tensor.map = replace(tensor.map, steps=steps, atom=atom)
        bench = tensor.bench()
        shared = TILE + 128 * rng.randint(0, 9)
        load(bench, tensor, where, shared)
        for to, value in expected_load(tensor, shared, where).items():
            assert bench.shared.bytes[to] == value, (tensor.map, where, shared, to)


def test_the_model_swizzles_as_drawn() -> None:
    """The first rows of the 128-byte pattern in the PTX ISA: row r holds chunk c at c ^ r; of 64 bytes, two
    rows share a number; of 32 bytes, four."""
    assert [swizzled(16 * chunk + 128 * 3, 128) // 16 % 8 for chunk in range(8)] == [3, 2, 1, 0, 7, 6, 5, 4]
    assert [swizzled(16 * chunk + 64 * 5, 64) // 16 % 4 for chunk in range(4)] == [2, 3, 0, 1]
    assert [swizzled(16 * chunk + 32 * 6, 32) // 16 % 2 for chunk in range(2)] == [1, 0]
    assert [swizzled(32 * pair + 128 * 6, 128, 32) // 32 % 4 for pair in range(4)] == [2, 3, 0, 1]
    assert [swizzled(64 * half + 128 * 5, 128, 64) // 64 % 2 for half in range(2)] == [1, 0]


@pytest.mark.parametrize("schedule", ["early", "late", "random:5"])
def test_schedules_give_equal_bits(schedule: str) -> None:
    """Load, wait, store; under `late` nothing has landed before the wait."""
    tensor = Tensor(random.Random(4), "bf16", (64, 32), (64, 8), 128)
    bench = tensor.bench(schedule=schedule)
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    want = tensor.bytes.copy()
    for source, to in zip(tensor.map.walk(TILE, (0, 8)), tensor.map.walk(TILE, (0, 24)), strict=True):
        want[tensor.at(to[1])] = tensor.bytes[tensor.at(source[1])]
    size = tensor.map.box_bytes
    play(
        bench,
        [
            step("mbarrier.arrive.expect_tx.shared.b64 _, [%b], %n", b=BAR, n=size),
            step(load_text(2), s=TILE, d1=PARAM_WINDOW, b=BAR, c0=0, c1=8),
            step("mbarrier.try_wait.parity.shared.b64 %p0, [%b], %n", b=BAR, n=0),
            step(store_text(2), s=TILE, d1=PARAM_WINDOW, c0=0, c1=24),
            step("cp.async.bulk.commit_group"),
            step("cp.async.bulk.wait_group 0"),
        ],
    )
    np.testing.assert_array_equal(tensor.bytes, want)


def test_late_load_poisons_until_it_lands() -> None:
    tensor = Tensor(random.Random(5), "f32", (32, 8), (32, 8), 128)
    bench = tensor.bench()
    size = tensor.map.box_bytes
    bench.shared.bytes[TILE : TILE + size] = 1
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    bench.issue("mbarrier.arrive.expect_tx.shared.b64 _, [%b], %n", b=BAR, n=size)
    bench.issue(load_text(2), s=TILE, d1=PARAM_WINDOW, b=BAR, c0=0, c1=0)
    assert np.isnan(bench.shared.bytes[TILE : TILE + size].view(np.float32)).all()
    wait = bench.issue("mbarrier.try_wait.parity.shared.b64 %p0, [%b], %n", b=BAR, n=0)
    assert isinstance(wait, Wait)
    assert wait.advance is not None
    assert wait.advance()
    assert wait.ready()
    assert not np.isnan(bench.shared.bytes[TILE : TILE + size].view(np.float32)).all()


def test_late_store_reads_its_source_at_the_wait() -> None:
    """A store whose source is overwritten before wait_group.read stores the new bytes: the bug shows."""
    for waits, stored in ((True, 7), (False, 9)):
        tensor = Tensor(random.Random(6), "u8", (16, 4), (16, 4), 0)
        bench = tensor.bench()
        bench.shared.bytes[TILE : TILE + 64] = 7
        bench.shared.written(TILE, 64)
        bench.issue(store_text(2), s=TILE, d1=PARAM_WINDOW, c0=0, c1=0)
        bench.issue("cp.async.bulk.commit_group")
        if waits:
            bench.issue("cp.async.bulk.wait_group.read 0")
        poisoned = [int(tensor.bytes[tensor.at(to)]) for _, to in tensor.map.walk(TILE, (0, 0))]
        assert poisoned == [0xFF] * 64  # not written yet in either case
        bench.shared.bytes[TILE : TILE + 64] = 9
        bench.issue("cp.async.bulk.wait_group 0")
        got = [int(tensor.bytes[tensor.at(to)]) for _, to in tensor.map.walk(TILE, (0, 0))]
        assert got == [stored] * 64


def test_a_store_by_all_lanes_is_done_once() -> None:
    tensor = Tensor(random.Random(7), "f32", (32, 4), (32, 4), 128)
    bench = tensor.bench()
    bench.shared.bytes[TILE : TILE + 512] = np.ones(128, np.float32).view(np.uint8)
    bench.shared.written(TILE, 512)
    for _, to in tensor.map.walk(TILE, (0, 0)):
        tensor.bytes[tensor.at(to)] = 0
    text = store_text(2, "cp.reduce.async.bulk.tensor", ".add")
    bench.issue(text, lanes=ALL, s=TILE, d1=PARAM_WINDOW, c0=0, c1=0)
    bench.issue("cp.async.bulk.commit_group", lanes=ALL)
    bench.issue("cp.async.bulk.wait_group 0", lanes=np.arange(32) == 31)
    got = tensor.bytes[tensor.at(tensor.map.address) :][:128].view(np.float32)
    np.testing.assert_array_equal(got, 1)
    (note,) = bench.notes()
    once = wording("sim.machine.lanes-equal", instruction="cp.reduce.async.bulk.tensor", lanes=32)
    assert re.fullmatch(once, note)


def test_lanes_with_different_operands_do_one_each() -> None:
    tensor = Tensor(random.Random(8), "u8", (16, 32), (16, 1), 0)
    bench = tensor.bench()
    bench.shared.bytes[TILE : TILE + 4096] = np.repeat(np.arange(32, dtype=np.uint8), 128)
    bench.shared.written(TILE, 4096)
    lane = np.arange(32)
    bench.issue(store_text(2), lanes=ALL, s=TILE + 128 * lane, d1=PARAM_WINDOW, c0=0, c1=lane)
    bench.cta.queue.drain()
    for row in range(32):
        assert tensor.bytes[tensor.at(tensor.map.element((3, row)))] == row
    assert not bench.notes()


def test_descriptor_in_global_memory() -> None:
    tensor = Tensor(random.Random(9), "bf16", (64, 8), (64, 8), 128)
    room = np.zeros(256, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + 128] = np.frombuffer(tensor.map.encode(), np.uint8)
    base = tensor.memory.add_array(room, "maps") + start
    bench = tensor.bench()
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    bench.issue(load_text(2), s=TILE, d1=base, b=BAR, c0=0, c1=0)
    bench.cta.queue.drain()
    for to, value in expected_load(tensor, TILE, (0, 0)).items():
        assert bench.shared.bytes[to] == value
    bench.issue("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d1, {%c0, %c1}]", d1=base, c0=0, c1=0)


def refuses(kind: FaultKind, message: str, *, map_of: dict[str, object], **changes: int) -> None:
    options: dict[str, object] = {
        "dtype": "bf16",
        "dims": (64, 32),
        "box": (64, 8),
        "swizzle": 128,
        **map_of,
    }
    tensor = Tensor(random.Random(1), **options)  # type: ignore[arg-type]
    bench = tensor.bench()
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    values = {"s": TILE, "d1": PARAM_WINDOW, "b": BAR, "c0": 0, "c1": 0, **changes}

    def load_and_land() -> None:
        bench.issue(load_text(2), **values)
        bench.cta.queue.drain()

    with pytest.raises(KernelFault, match=f"{kind}: .*{message}"):
        load_and_land()


def test_faults() -> None:
    refuses(FaultKind.MISALIGNED, "no multiple of 128", map_of={}, s=TILE + 64)
    refuses(FaultKind.OUT_OF_BOUNDS, "shared address", map_of={}, s=SHARED_BASE + 128 * 1024 - 128)
    refuses(FaultKind.OUT_OF_BOUNDS, "no tensor map at param", map_of={}, d1=PARAM_WINDOW + 64)
    refuses(FaultKind.MISALIGNED, "no multiple of 64", map_of={}, d1=PARAM_WINDOW + 16)
    refuses(FaultKind.DESCRIPTOR, "row of 256 bytes", map_of={"box": (128, 8), "dims": (128, 32)})
    refuses(FaultKind.DESCRIPTOR, "row of 10 bytes", map_of={"box": (5, 8), "swizzle": 0})
    refuses(FaultKind.DESCRIPTOR, "rank 3", map_of={"dims": (64, 8, 2), "box": (64, 8, 1)})
    refuses(FaultKind.MISALIGNED, "at 4: its bytes in dimension 0", map_of={}, c0=4)
    refuses(FaultKind.BARRIER, "no mbarrier was initialised", map_of={}, b=BAR + 8)


def test_a_store_below_zero() -> None:
    tensor = Tensor(random.Random(1), "bf16", (64, 32), (64, 8), 128)
    bench = tensor.bench(track=False)
    bench.issue(store_text(2), s=TILE, d1=PARAM_WINDOW, c0=0, c1=0)
    with pytest.raises(
        KernelFault,
        match="out-of-bounds access: " + wording("sim.machine.tma-below-zero", coordinate="(0, -1)"),
    ):
        bench.issue(store_text(2), s=TILE, d1=PARAM_WINDOW, c0=0, c1=0xFFFF_FFFF)


def test_a_store_past_dimension_0_is_noted() -> None:
    tensor = Tensor(random.Random(1), "bf16", (60, 8), (64, 8), 128)
    bench = tensor.bench(track=False)
    bench.issue(store_text(2), s=TILE, d1=PARAM_WINDOW, c0=0, c1=0)
    (note,) = bench.notes()
    units = wording("sim.machine.whole-units", instruction="cp.async.bulk.tensor", unit=16, bytes=8)
    assert re.fullmatch(units, note)


def test_a_map_of_more_than_the_tensor() -> None:
    """The map says 33 rows, the allocation has fewer: a box inside the map but not inside memory."""
    tensor = Tensor(random.Random(1), "bf16", (64, 32), (64, 8), 128, pad=0)
    tensor.map = Map(tensor.map.address, "bf16", (64, 48), tensor.map.strides, (64, 8), 128)
    bench = tensor.bench()
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    values = {"s": TILE, "d1": PARAM_WINDOW, "b": BAR, "c0": 0}
    bench.issue(load_text(2), c1=24, **values)
    with pytest.raises(KernelFault, match=r"out-of-bounds.*nearest is tensor"):
        bench.issue(load_text(2), c1=32, **values)


def test_a_store_of_bytes_nobody_wrote() -> None:
    tensor = Tensor(random.Random(1), "u8", (16, 6), (16, 8), 0)
    bench = tensor.bench()
    bench.shared.written(TILE, 6 * 16)  # the last two rows lie outside the tensor
    bench.issue(store_text(2), s=TILE, d1=PARAM_WINDOW, c0=0, c1=0)
    bench.cta.queue.drain()
    bench.issue(store_text(2), s=TILE + 1024, d1=PARAM_WINDOW, c0=0, c1=0)
    unwritten = "uninitialised read: " + wording("sim.machine.box-unwritten")
    with pytest.raises(KernelFault, match=unwritten) as caught:
        bench.cta.queue.drain()
    assert caught.value.place is not None


def test_refused_by_name() -> None:
    bench = Tensor(random.Random(1), "bf16", (64, 32), (64, 8), 128).bench()
    text = load_text(3).replace(".tile", ".im2col")
    with pytest.raises(UnsupportedError, match="im2col"):
        bench.issue(text, s=TILE, d1=PARAM_WINDOW, b=BAR, c0=0, c1=0, c2=0, n=1)


def test_a_box_is_cheap() -> None:
    """A 64 x 128 bf16 box, issued and landed, in well under 100 us (the best of many, on a shared
    machine)."""
    tensor = Tensor(random.Random(1), "bf16", (64, 4096), (64, 128), 128, pad=0)
    bench = tensor.bench(schedule="late", track=False)
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    spent = []
    for _ in range(50):
        bench.issue("mbarrier.arrive.expect_tx.shared.b64 _, [%b], %n", b=BAR, n=16384)
        start = time.process_time()
        bench.issue(load_text(2), s=TILE, d1=PARAM_WINDOW, b=BAR, c0=0, c1=256)
        bench.cta.queue.drain()
        spent.append(time.process_time() - start)
    assert min(spent) < 200e-6
