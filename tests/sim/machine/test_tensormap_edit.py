# SPDX-License-Identifier: Apache-2.0
"""Tensor maps that kernels edit: what TMA makes of them, against the map that has the new values throughout.

The expected maps are encoded by `tma_model.Map`, which knows nothing of replacing.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.engine_interface import PARAM_WINDOW, SHARED_BASE, SHARED_WINDOW
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.machine.tensormap import decode_tensormap
from tests.sim.machine.bench import ALL, Bench
from tests.sim.machine.tma_model import CODES, SIZES, SWIZZLES, Map

BAR = SHARED_BASE
SHARED_MAP = SHARED_BASE + 128
TILE = SHARED_BASE + 1024


def replace(field: str, space: str = "global", bits: int = 32, ordinal: int | None = None) -> str:
    where = f".{space}" if space else ""
    number = "" if ordinal is None else f"{ordinal}, "
    value = "%d1" if bits == 64 else "%r0"
    return f"tensormap.replace.tile.{field}{where}.b1024.b{bits} [%d0], {number}{value}"


def edits(to: Map) -> list[tuple[str, int, int | None, int]]:
    """(field, bits, ordinal, value) that make any map into `to`: the CUDA Programming Guide's values."""
    return [
        ("global_address", 64, None, to.address),
        ("rank", 32, None, len(to.dims) - 1),
        *(("global_dim", 32, i, extent) for i, extent in enumerate(to.dims)),
        *(("global_stride", 64, i, stride) for i, stride in enumerate(to.strides)),
        *(("box_dim", 32, i, extent) for i, extent in enumerate(to.box)),
        *(("element_stride", 32, i, 1) for i in range(len(to.dims))),
        ("elemtype", 32, None, CODES[to.dtype]),
        ("swizzle_mode", 32, None, SWIZZLES[to.swizzle]),
        ("interleave_layout", 32, None, 0),
        ("swizzle_atomicity", 32, None, 0),
        ("fill_mode", 32, None, 0),
    ]


class Maps:
    """A bench with one map in global memory and one in shared memory, both `first`."""

    def __init__(self, first: Map, memory: GlobalMemory | None = None, **options: object) -> None:
        room = np.zeros(512, np.uint8)
        start = -room.ctypes.data % 128
        self.bytes = room[start : start + 256]
        memory = memory or GlobalMemory()
        memory.add_array(room, "maps")
        self.address = int(self.bytes.ctypes.data)
        self.bench = Bench(memory=memory, shared=64 * 1024, **options)
        self.bytes[:128] = np.frombuffer(first.encode(), np.uint8)
        self.bench.shared.bytes[SHARED_MAP : SHARED_MAP + 128] = self.bytes[:128]
        self.bench.shared.written(SHARED_MAP, 128)

    def edit(
        self,
        field: str,
        bits: int,
        ordinal: int | None,
        value: int,
        space: str = "global",
        at: int | None = None,
    ) -> None:
        where = self.address if at is None else at
        text = replace(field, space, bits, ordinal)
        self.bench.issue(text, d0=where, **{"d1" if bits == 64 else "r0": value})


def a_map(rng: random.Random) -> Map:
    """Any map that could be: rows of boxes fit their swizzle."""
    dtype, rank, swizzle = rng.choice(list(SIZES)), rng.randint(1, 5), rng.choice(list(SWIZZLES))
    row = (swizzle or 16 * rng.randint(1, 4)) // SIZES[dtype]
    return Map(
        address=16 * rng.randrange(1 << 40),
        dtype=dtype,
        dims=tuple(rng.randint(1, (1 << 32) - 1) for _ in range(rank)),
        strides=tuple(16 * rng.randrange(1 << 36) for _ in range(rank - 1)),
        box=(row, *(rng.randint(1, 256) for _ in range(rank - 1))),
        swizzle=swizzle,
    )


@pytest.mark.parametrize("space", ["global", "shared::cta", "generic global", "generic shared"])
def test_every_field(space: str) -> None:
    rng = random.Random(3)
    for _ in range(20):
        first, to = a_map(rng), a_map(rng)
        maps = Maps(first)
        shared = "shared" in space
        generic = space.startswith("generic")
        at = (SHARED_MAP + SHARED_WINDOW * generic) if shared else maps.address
        changes = edits(to)
        rng.shuffle(changes)
        for field, bits, ordinal, value in changes:
            maps.edit(field, bits, ordinal, value, "" if generic else space, at)
        held = maps.bench.shared.view(SHARED_MAP, 128) if shared else maps.bytes[:128]
        assert decode_tensormap(held.tobytes()) == decode_tensormap(to.encode())
        np.testing.assert_array_equal(held[64:], 0xA5)
        np.testing.assert_array_equal(maps.bytes[128:], 0)


@pytest.mark.parametrize(
    ("code", "tf32", "ftz"), [(7, False, False), (8, False, True), (11, True, False), (12, True, True)]
)
def test_kinds_of_f32(code: int, tf32: bool, ftz: bool) -> None:
    """PTX ISA, "tensormap.replace": f32, f32.ftz, tf32, tf32.ftz."""
    maps = Maps(a_map(random.Random(7)))
    for before in (12, code):
        maps.edit("elemtype", 32, None, before)
    held = decode_tensormap(maps.bytes[:128].tobytes())
    assert (held.dtype, held.tf32, held.ftz) == ("f32", tf32, ftz)


@pytest.mark.parametrize(("code", "name"), [(13, "b4x16"), (14, "b4x16_p64"), (15, "b6x16_p32")])
def test_types_of_less_than_a_byte(code: int, name: str) -> None:
    """PTX ISA 9.1, 9.7.9.28, table 33, the values of .elemtype."""
    maps = Maps(a_map(random.Random(7)))
    for before in (12, code):
        maps.edit("elemtype", 32, None, before)
    held = decode_tensormap(maps.bytes[:128].tobytes())
    assert (held.dtype, held.tf32) == (name, False)


def test_atoms_of_the_swizzle() -> None:
    """PTX ISA, "tensormap.replace", the values of .swizzle_atomicity."""
    maps = Maps(a_map(random.Random(7)))
    maps.edit("swizzle_mode", 32, None, 3)
    for value, atom in ((1, 32), (3, 64), (0, 16)):
        maps.edit("swizzle_atomicity", 32, None, value)
        assert decode_tensormap(maps.bytes[:128].tobytes()).atom == atom


def test_fill() -> None:
    maps = Maps(a_map(random.Random(8)))
    for fill in (1, 0):
        maps.edit("fill_mode", 32, None, fill)
        assert decode_tensormap(maps.bytes[:128].tobytes()).fill_nan == bool(fill)


def test_a_sequence_of_its_own() -> None:
    """What kernels do for sequences of any length: the map ends where the sequence does."""
    memory = GlobalMemory()
    tokens, width, end = 40, 64, 21
    tensor = np.arange(tokens * width, dtype=np.float32).reshape(tokens, width)
    memory.add_array(tensor, "tensor")
    whole = Map(tensor.ctypes.data, "f32", (width, tokens), (4 * width,), (8, 16), 0)
    maps = Maps(whole, memory)
    bench = maps.bench
    maps.edit("global_dim", 32, 1, end)
    bench.issue("fence.proxy.tensormap::generic.release.gpu")
    bench.issue("fence.proxy.tensormap::generic.acquire.gpu [%d0], 128", d0=maps.address)
    bench.issue("mbarrier.init.shared.b64 [%b], %n", b=BAR, n=1)
    bench.issue("mbarrier.arrive.expect_tx.shared.b64 _, [%b], %n", b=BAR, n=whole.box_bytes)
    bench.issue(
        "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
        "[%s], [%d0, {%x, %y}], [%b]",
        s=TILE, d0=maps.address, x=8, y=16, b=BAR,
    )  # fmt: skip
    # The map is read when the copy is issued: what becomes of it after does not matter.
    maps.edit("global_dim", 32, 1, 1)
    bench.cta.queue.drain()
    got = bench.shared.view(TILE, whole.box_bytes).view(np.float32).reshape(16, 8)
    want = np.zeros((16, 8), np.float32)
    want[: end - 16] = tensor[16:end, 8:16]
    np.testing.assert_array_equal(got, want)


def test_lanes_edit_their_own_maps() -> None:
    maps = Maps(a_map(random.Random(1)))
    other = a_map(random.Random(2))
    maps.bytes[128:] = np.frombuffer(other.encode(), np.uint8)
    addresses = np.full(32, maps.address, np.uint64)
    addresses[1] += 128
    lanes = np.arange(32) < 2
    maps.bench.issue(replace("global_dim", ordinal=0), lanes=lanes, d0=addresses, r0=np.arange(7, 39))
    assert [decode_tensormap(maps.bytes[at : at + 128].tobytes()).dims[0] for at in (0, 128)] == [7, 8]


COPY = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d0], [%s], "


def test_copy_and_fence() -> None:
    maps = Maps(a_map(random.Random(4)))
    maps.bytes[:] = 0
    maps.bench.issue(f"{COPY}128", lanes=ALL, d0=maps.address + 128, s=SHARED_MAP)
    np.testing.assert_array_equal(maps.bytes[128:], maps.bench.shared.view(SHARED_MAP, 128))
    np.testing.assert_array_equal(maps.bytes[:128], 0)


def test_copy_and_fence_is_for_the_whole_warp() -> None:
    maps = Maps(a_map(random.Random(4)))
    with pytest.raises(KernelFault, match="divergence"):
        maps.bench.issue(f"{COPY}128", lanes=ALL & (np.arange(32) > 0), d0=maps.address, s=SHARED_MAP)


@pytest.mark.parametrize(
    ("text", "values", "kind"),
    [
        (f"{COPY}64", {"s": SHARED_MAP}, FaultKind.DESCRIPTOR),
        (f"{COPY}128", {"s": SHARED_MAP + 32}, FaultKind.MISALIGNED),
        ("fence.proxy.tensormap::generic.acquire.gpu [%d0], 64", {}, FaultKind.DESCRIPTOR),
        ("fence.proxy.tensormap::generic.acquire.gpu [%d0], 128", {"d0": 4096}, FaultKind.OUT_OF_BOUNDS),
        (replace("rank"), {"r0": 5}, FaultKind.DESCRIPTOR),
        (replace("box_dim", ordinal=0), {"r0": 0}, FaultKind.DESCRIPTOR),
        (replace("box_dim", ordinal=0), {"r0": 257}, FaultKind.DESCRIPTOR),
        (replace("element_stride", ordinal=1), {"r0": 9}, FaultKind.DESCRIPTOR),
        (replace("global_stride", bits=64, ordinal=0), {"d1": 24}, FaultKind.DESCRIPTOR),
        (replace("global_stride", bits=64, ordinal=4), {"d1": 32}, FaultKind.DESCRIPTOR),
        (replace("global_dim", ordinal=5), {"r0": 1}, FaultKind.DESCRIPTOR),
        (replace("rank", space="shared::cta"), {"d0": SHARED_MAP + 32, "r0": 1}, FaultKind.MISALIGNED),
        (replace("rank", space="shared::cta"), {"d0": SHARED_MAP + 128, "r0": 1}, FaultKind.UNINITIALISED),
        (replace("rank", space=""), {"d0": PARAM_WINDOW, "r0": 1}, FaultKind.OUT_OF_BOUNDS),
    ],
)
def test_faults(text: str, values: dict[str, int], kind: FaultKind) -> None:
    maps = Maps(a_map(random.Random(5)))
    with pytest.raises(KernelFault) as caught:
        maps.bench.issue(text, lanes=ALL, **{"d0": maps.address, **values})
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("field", "value"),
    [("elemtype", 16), ("swizzle_mode", 4), ("interleave_layout", 1), ("swizzle_atomicity", 2)],
)
def test_what_no_copy_knows_is_refused_by_name(field: str, value: int) -> None:
    maps = Maps(a_map(random.Random(6)))
    before = maps.bytes.copy()
    with pytest.raises(UnsupportedError, match=f"{field} with {value}"):
        maps.edit(field, 32, None, value)
    np.testing.assert_array_equal(maps.bytes, before)
