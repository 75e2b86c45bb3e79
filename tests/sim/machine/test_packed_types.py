# SPDX-License-Identifier: Apache-2.0
"""Tensor maps of elements of 4 and 6 bits against PTX ISA 5.5.1.1: in global memory sixteen elements have 8
or 12 bytes, in shared memory 8 or 16, and the padding is undefined. Limits are those of "Restriction on
Tensor Copy instructions" and of the CUDA driver API; the bytes that an mbarrier counts those of CUTLASS."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.engine_interface import PARAM_WINDOW
from gdnbench.sim.machine.memory import GlobalMemory
from tests.messages import wording
from tests.sim.machine.bench import Bench
from tests.sim.machine.test_gather_scatter import GATHER
from tests.sim.machine.test_tma import BAR, TILE, corner, load_text, store_text
from tests.sim.machine.tma_model import Map, swizzled
from tests.sim.tcgen05.products import matrix_descriptor
from tests.sim.tcgen05.tensor_machine import Machine

# Bytes of sixteen elements in global memory, in shared memory.
SIXTEEN = {"b4x16": (8, 8), "b4x16_p64": (8, 16), "b6x16_p32": (12, 16)}


class Packed:
    """A matrix of elements of less than a byte, in memory with its map."""

    def __init__(self, dtype: str, dims: tuple[int, int], box: tuple[int, int], **options: int) -> None:
        rng = random.Random(5)
        self.row = dims[0] * SIXTEEN[dtype][0] // 16
        pitch = -(-self.row // 32) * 32 + 32
        self.bytes = np.frombuffer(rng.randbytes(dims[1] * pitch + 64), np.uint8).copy()
        base = -(-self.bytes.ctypes.data // 32) * 32
        self.map = Map(
            base, dtype, dims, (pitch,), box, options.get("swizzle", 0), (), options.get("atom", 16)
        )
        self.memory = GlobalMemory()
        self.memory.add_array(self.bytes, "tensor")
        self.before = self.bytes.copy()

    def rows(self, data: np.ndarray | None = None) -> np.ndarray:
        """The rows as bytes, [rows, bytes]."""
        data = self.bytes if data is None else data
        start, pitch = self.map.address - self.bytes.ctypes.data, self.map.strides[0]
        return data[start : start + self.map.dims[1] * pitch].reshape(-1, pitch)[:, : self.row]

    def box_bytes(self) -> int:
        return self.map.box[0] * SIXTEEN[self.map.dtype][0] // 16 * self.map.box[1]

    def bench(self) -> Bench:
        return Bench(param=self.map.encode(), memory=self.memory, shared=128 * 1024)

    def load(self, where: tuple[int, ...], shared: int, text: str = load_text(2), times: int = 1) -> Bench:
        bench = self.bench()
        bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
        expected = times * self.box_bytes()
        bench.issue("mbarrier.arrive.expect_tx.shared.b64 _, [%b], %n", b=BAR, n=expected)
        bench.issue(text, s=shared, d1=PARAM_WINDOW, b=BAR, **corner(where))
        bench.cta.queue.drain()
        assert bench.shared.phase[BAR // 8] == 1, "the bytes in global memory complete the phase"
        return bench

    def shared_bytes(self, shared: int, row: int) -> np.ndarray:
        """The addresses in shared memory of the bytes of a row of the box, padding included."""
        _, spread = SIXTEEN[self.map.dtype]
        width = self.map.box[0] * spread // 16
        start = shared + row * max(width, self.map.swizzle)
        return np.array(
            [swizzled(start + byte, self.map.swizzle, self.map.atom) for byte in range(width)]
        ).reshape(-1, spread)


CASES = [
    (dtype, {"swizzle": swizzle, "atom": atom}, box)
    for dtype, box in (("b4x16", (96, 6)), ("b4x16_p64", (128, 6)), ("b6x16_p32", (128, 5)))
    for swizzle, atom in ((0, 16), (128, 16), (128, 32), (128, 64))
] + [("b4x16", {"swizzle": 64}, (128, 6)), ("b4x16", {"swizzle": 32}, (64, 6))]


@pytest.mark.parametrize(("dtype", "options", "box"), CASES, ids=str)
@pytest.mark.parametrize("where", [(0, 0), (128, 4), (128, -3), (384, 1)])
def test_load(dtype: str, options: dict[str, int], box: tuple[int, int], where: tuple[int, int]) -> None:
    tensor = Packed(dtype, (256, 8), box, **options)
    shared = TILE + 256
    bench = tensor.load(where, shared)
    packed, _ = SIXTEEN[dtype]
    touched = np.zeros(bench.shared.valid.shape, bool)
    for row in range(box[1]):
        want = np.zeros(box[0] * packed // 16, np.uint8)
        if 0 <= where[1] + row < 8:
            start = where[0] * packed // 16
            part = tensor.rows()[where[1] + row, start : start + len(want)]
            want[: len(part)] = part
        at = tensor.shared_bytes(shared, row)
        np.testing.assert_array_equal(bench.shared.bytes[at[:, :packed]].ravel(), want)
        touched[at[:, :packed]] = True
    touched[BAR : BAR + 8] = bench.shared.valid[BAR : BAR + 8]
    np.testing.assert_array_equal(bench.shared.valid, touched)  # the padding is undefined


def test_four_rows_with_padding() -> None:
    tensor = Packed("b4x16_p64", (128, 8), (128, 1), swizzle=128)
    bench = tensor.load((0, 6, 1, 99, 0), TILE, GATHER, times=4)
    for place, row in enumerate((6, 1, None, 0)):
        found = bench.shared.bytes[tensor.shared_bytes(TILE, place)[:, :8]].ravel()
        np.testing.assert_array_equal(found, 0 if row is None else tensor.rows()[row])


@pytest.mark.parametrize("schedule", ["early", "late", "random:3"])
def test_the_padding_is_the_same_under_every_schedule(schedule: str) -> None:
    tensor = Packed("b6x16_p32", (128, 4), (128, 4))
    bench = Bench(param=tensor.map.encode(), memory=tensor.memory, shared=128 * 1024, schedule=schedule)
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    bench.issue("mbarrier.arrive.expect_tx.shared.b64 _, [%b], %n", b=BAR, n=tensor.box_bytes())
    bench.issue(load_text(2), s=TILE, d1=PARAM_WINDOW, b=BAR, c0=0, c1=0)
    bench.cta.queue.drain()
    assert (bench.shared.bytes[TILE : TILE + 512].reshape(-1, 16)[:, 12:] == 0xFF).all()


def store(tensor: Packed, where: tuple[int, int], shared: np.ndarray) -> None:
    bench = tensor.bench()
    bench.shared.bytes[TILE : TILE + len(shared)] = shared
    bench.shared.written(TILE, len(shared))
    bench.issue(store_text(2), s=TILE, d1=PARAM_WINDOW, **corner(where))
    bench.cta.queue.drain()


@pytest.mark.parametrize("options", [{}, {"swizzle": 32}])
def test_store_of_four_bits(options: dict[str, int]) -> None:
    """b4x16: the bytes of shared memory as they are."""
    tensor = Packed("b4x16", (256, 8), (64, 4), **options)
    shared = np.random.default_rng(2).integers(0, 256, 512, np.uint8)
    store(tensor, (64, 6), shared)
    want = tensor.rows(tensor.before).copy()
    for row in range(2):
        want[6 + row, 32:64] = shared[tensor.shared_bytes(TILE, row).ravel() - TILE]
    np.testing.assert_array_equal(tensor.rows(), want)


@pytest.mark.parametrize("options", [{}, {"swizzle": 128}, {"swizzle": 128, "atom": 64}])
def test_store_of_six_bits(options: dict[str, int]) -> None:
    """b6p2x16: each byte of shared memory gives its low six bits, without gaps."""
    tensor = Packed("b6x16_p32", (256, 8), (128, 3), **options)
    shared = np.random.default_rng(3).integers(0, 256, 512, np.uint8)
    store(tensor, (128, 6), shared)
    want = tensor.rows(tensor.before).copy()
    for row in range(2):
        elements = shared[tensor.shared_bytes(TILE, row).ravel() - TILE].tolist()
        number = sum((element & 63) << 6 * place for place, element in enumerate(elements))
        want[6 + row, 96:192] = np.frombuffer(number.to_bytes(96, "little"), np.uint8)
    np.testing.assert_array_equal(tensor.rows(), want)


def refuses(tensor: Packed, text: str, where: tuple[int, int]) -> KernelFault:
    bench = tensor.bench()
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    with pytest.raises(KernelFault) as caught:
        bench.issue(text, s=TILE, d1=PARAM_WINDOW, b=BAR, **corner(where))
    return caught.value


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"box": (64, 4)}, "a box of 64 of 256 elements"),
        ({"dims": (192, 8)}, "a box of 128 of 192 elements"),
        ({"strides": (144,)}, "strides"),
        ({"address": 16}, "address"),
        ({"swizzle": 64, "box": (64, 4)}, "box of 64"),
    ],
)
@pytest.mark.parametrize("dtype", ["b4x16_p64", "b6x16_p32"])
def test_limits_with_padding(dtype: str, changes: dict[str, object], what: str) -> None:
    tensor = Packed(dtype, (256, 8), (128, 4))
    tensor.load((0, 0), TILE)
    if "address" in changes:
        changes = {"address": tensor.map.address + 16}
    tensor.map = replace(tensor.map, **changes)  # type: ignore[arg-type]
    fault = refuses(tensor, load_text(2), (0, 0))
    assert fault.kind is FaultKind.DESCRIPTOR
    assert re.search(wording("sim.machine.map-packed", type=dtype), fault.message)
    assert what in fault.message


@pytest.mark.parametrize(("dtype", "column"), [("b4x16", 16), ("b4x16_p64", 64), ("b6x16_p32", 32)])
def test_columns_between_units(dtype: str, column: int) -> None:
    fault = refuses(Packed(dtype, (256, 8), (128, 4)), load_text(2), (column, 0))
    assert fault.kind is FaultKind.MISALIGNED


def test_what_these_types_cannot_do() -> None:
    padded, plain = Packed("b4x16_p64", (256, 8), (128, 4)), Packed("b4x16", (256, 8), (128, 4))
    assert "a store" in refuses(padded, store_text(2), (0, 0)).message
    reduction = store_text(2, "cp.reduce.async.bulk.tensor", ".add")
    assert "a reduction" in refuses(plain, reduction, (0, 0)).message


def test_a_product_of_four_bit_elements_that_a_copy_spread() -> None:
    """kind::f8f6f4 reads e2m1 elements as b4x16_p64 leaves them; the padding does not count."""
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    machine = Machine()
    machine.alloc(512)
    values = []
    for rows, at in ((128, 16 * 1024), (64, 64 * 1024)):
        tensor = Packed("b4x16_p64", (128, rows), (128, rows), swizzle=128)
        bench = tensor.load((0, 0), at)
        span = slice(at, at + 128 * rows)
        machine.cta.shared.bytes[span] = bench.shared.bytes[span]
        machine.cta.shared.valid[span] = bench.shared.valid[span]
        codes = np.stack((tensor.rows() & 15, tensor.rows() >> 4), axis=2).reshape(rows, 128)
        values.append(numbers[codes])
    e2m1 = 5
    idesc = 1 << 4 | e2m1 << 7 | e2m1 << 10 | 64 >> 3 << 17 | 128 >> 4 << 24
    for block in range(4):
        a, b = (matrix_descriptor(at + 32 * block, 16, 1024, 2) for at in (16 * 1024, 64 * 1024))
        machine.mma("f8f6f4", 0, a, b, idesc, accumulate=block > 0)
    machine.finish()
    found = machine.cta.tmem.cells[:, :64].view(np.float32)
    np.testing.assert_array_equal(found, values[0] @ values[1].T)
