# SPDX-License-Identifier: Apache-2.0
"""Tensor copies of the TMA unit: boxes inside, across and outside a tensor, swizzles, fills, element strides.

A load kernel copies one box per CTA, at that CTA's coordinates, into shared memory filled with 0xA5, and
stores that memory word by word: layout, fill and what stays untouched all show. A row of the answer is one
box.
A store kernel puts its boxes one after another and the answer is the whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from tests.sim.silicon.microkernel import Array, Buffer, MicroKernel, TensorMapOf, entry
from tests.sim.silicon.patterns import f32_one, fill_up, half_two, random_words
from tests.sim.silicon.tensormap import DataType, Fill, Swizzle, TensorMap

THREADS = 32  # no more than the words of the smallest tile: the loops test behind their bodies
TRIES = 64

BF16, F32 = DataType.BFLOAT16, DataType.FLOAT32


@dataclass(frozen=True, slots=True)
class Load:
    """Boxes of one tensor map at `at`; `offset` is where the box lies past a 1024-byte alignment."""

    name: str
    map: TensorMap
    at: tuple[tuple[int, ...], ...]
    offset: int = 0
    # None: numbers of their own; else the tensor's contents
    data: Array | None = None


def tensor_map(
    dtype: DataType,
    dims: tuple[int, ...],
    box: tuple[int, ...],
    *,
    swizzle: Swizzle = Swizzle.NONE,
    fill: Fill = Fill.NONE,
    pad: int = 0,
    element_strides: tuple[int, ...] | None = None,
) -> TensorMap:
    """Packed strides but for `pad` bytes after each row and a round-up to 16."""
    strides = []
    pitch = dims[0] * dtype.size + pad
    for extent in dims[1:]:
        pitch = -(-pitch // 16) * 16
        strides.append(pitch)
        pitch *= extent
    ones = element_strides or (1,) * len(dims)
    return TensorMap(dtype, dims, tuple(strides), box, ones, swizzle=swizzle, fill=fill)


def box_elements(map_: TensorMap) -> int:
    """Every `element_stride`-th element of the box; the innermost dimension has no such stride, whatever is
    asked (CUDA driver API, cuTensorMapEncodeTiled: elementStrides[0] is ignored)."""
    outer = zip(map_.box[1:], map_.element_strides[1:], strict=True)
    return map_.box[0] * prod(-(-box // step) for box, step in outer)


def box_bytes(map_: TensorMap) -> int:
    """What one copy moves, and its mbarrier counts."""
    return box_elements(map_) * map_.dtype.size


def span_bytes(map_: TensorMap) -> int:
    """Shared memory from the box's first byte to its last: a shorter row takes a whole swizzle span too."""
    row = map_.box[0] * map_.dtype.size
    span = 16 << map_.swizzle if map_.swizzle else row
    return box_bytes(map_) // row * max(row, span)


def tensor_bytes(map_: TensorMap) -> int:
    return map_.dims[0] * map_.dtype.size if map_.rank == 1 else map_.strides[-1] * map_.dims[-1]


def contents(map_: TensorMap) -> Array:
    """Numbers that tell every element from its neighbours, in the element's width."""
    count = tensor_bytes(map_)
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[map_.dtype.size]
    numbers = np.arange(1, count // map_.dtype.size + 1, dtype=np.uint64)
    if map_.dtype.size == 1:
        numbers = random_words(3, numbers.size)
    return numbers.astype(kind)


def wait_loop(bar: str, parity: int = 0) -> str:
    """Bounded, so that a count that does not match shows as a flag and not as a hang."""
    return f"""mov.b32 %try, 0;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %done, [{bar}], {parity};
@%done bra ARRIVED;
add.s32 %try, %try, 1;
setp.lt.s32 %more, %try, {TRIES};
@%more bra WAIT;
ARRIVED:"""


def fill_and_dump(size: int) -> tuple[str, str]:
    """PTX of two loops over the tile's words, by all threads: fill with 0xA5; store to [%out]."""
    fill = f"""mov.b32 %w, %thread;
FILL:
mad.lo.s32 %a, %w, 4, %tile;
st.shared.b32 [%a], 0xA5A5A5A5;
add.s32 %w, %w, {THREADS};
setp.lt.s32 %more, %w, {size // 4};
@%more bra FILL;"""
    dump = f"""mov.b32 %w, %thread;
DUMP:
mad.lo.s32 %a, %w, 4, %tile;
ld.shared.b32 %v, [%a];
mad.wide.u32 %at, %w, 4, %out;
st.global.b32 [%at], %v;
add.s32 %w, %w, {THREADS};
setp.lt.s32 %more, %w, {size // 4};
@%more bra DUMP;"""
    return fill, dump


PRELUDE = """.reg .b32 %thread, %block, %w, %a, %v, %tile, %bar, %box, %try, %c<5>;
.reg .b64 %at, %out, %tm, %from;
.reg .pred %more, %done, %first;
.shared .align 8 .b8 bar[8];
mov.u32 %thread, %tid.x;
mov.u32 %block, %ctaid.x;
setp.eq.u32 %first, %thread, 0;
mov.b32 %tile, tile;
mov.b32 %bar, bar;
mov.b64 %tm, tm;
cvta.param.u64 %tm, %tm;
"""


def coordinates(rank: int, base: str = "%block") -> str:
    loads = "\n".join(f"ld.global.b32 %c{i}, [%at+{4 * i}];" for i in range(rank))
    return f"ld.param.b64 %at, [at];\nmad.wide.u32 %at, {base}, 20, %at;\n{loads}"


def padded(at: tuple[tuple[int, ...], ...]) -> Array:
    table = np.zeros((len(at), 5), np.int32)
    for row, place in zip(table, at, strict=True):
        row[: len(place)] = place
    return table


def load_kernel(load: Load) -> MicroKernel:
    rank, moved = load.map.rank, box_bytes(load.map)
    size = -(-(load.offset + span_bytes(load.map)) // 128) * 128 + 128  # and a guard behind
    fill, dump = fill_and_dump(size)
    place = ", ".join(f"%c{i}" for i in range(rank))
    opcode = f"cp.async.bulk.tensor.{rank}d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
    body = f""".shared .align 1024 .b8 tile[{size}];
{PRELUDE}{fill}
@%first mbarrier.init.shared::cta.b64 [%bar], 1;
fence.proxy.async.shared::cta;
bar.sync 0;
@!%first bra ISSUED;
{coordinates(rank)}
add.s32 %box, %tile, {load.offset};
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {moved};
{opcode} [%box], [%tm, {{{place}}}], [%bar];
ISSUED:
{wait_loop("%bar")}
ld.param.b64 %out, [done];
mad.wide.u32 %out, %block, 4, %out;
selp.b32 %v, 1, 0, %done;
@%first st.global.b32 [%out], %v;
bar.sync 0;
ld.param.b64 %out, [out];
mad.wide.u32 %out, %block, {size}, %out;
{dump}
ret;"""
    params = ".param .align 64 .b8 tm[128], .param .b64 at, .param .b64 done, .param .b64 out"
    boxes = tuple(f"box at {place}" for place in load.at)
    data = contents(load.map) if load.data is None else load.data
    name = f"tma_load_{load.name}"
    return MicroKernel(
        name,
        entry(name, params, body),
        (
            TensorMapOf("tm", "tensor", load.map),
            Buffer("at", padded(load.at)),
            Buffer("done", np.full((1, len(load.at)), 7, np.uint32), ("the box's bytes all counted",)),
            Buffer("out", np.full((len(load.at), size // 4), 0xDEADBEEF, np.uint32), boxes),
            Buffer("tensor", data, argument=False),
        ),
        len(load.at),
        THREADS,
    )


@dataclass(frozen=True, slots=True)
class Store:
    """Boxes written one after another by `instruction` (a plain store, or a reduction's name such as add)."""

    name: str
    map: TensorMap
    at: tuple[tuple[int, ...], ...]
    reduction: str = ""
    offset: int = 0
    data: Array | None = None
    tile: Array | None = None


def store_kernel(store: Store) -> MicroKernel:
    rank = store.map.rank
    size = -(-(store.offset + span_bytes(store.map)) // 128) * 128
    place = ", ".join(f"%c{i}" for i in range(rank))
    opcode = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
    if store.reduction:
        opcode = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{store.reduction}.tile.bulk_group"
    body = f""".shared .align 1024 .b8 tile[{size}];
{PRELUDE}ld.param.b64 %from, [image];
mov.b32 %w, %thread;
COPY:
mad.wide.u32 %at, %w, 4, %from;
ld.global.b32 %v, [%at];
mad.lo.s32 %a, %w, 4, %tile;
st.shared.b32 [%a], %v;
add.s32 %w, %w, {THREADS};
setp.lt.s32 %more, %w, {size // 4};
@%more bra COPY;
fence.proxy.async.shared::cta;
bar.sync 0;
@!%first bra LAST;
add.s32 %box, %tile, {store.offset};
mov.b32 %w, 0;
NEXT:
{coordinates(rank, "%w")}
{opcode} [%tm, {{{place}}}], [%box];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
add.s32 %w, %w, 1;
setp.lt.s32 %more, %w, {len(store.at)};
@%more bra NEXT;
LAST:
ret;"""
    params = ".param .align 64 .b8 tm[128], .param .b64 at, .param .b64 image"
    image = np.resize(store.tile, size // 4) if store.tile is not None else random_image(size // 4)
    data = np.zeros_like(contents(store.map)) + 7 if store.data is None else store.data
    name = f"tma_store_{store.name}"
    return MicroKernel(
        name,
        entry(name, params, body),
        (
            TensorMapOf("tm", "tensor", store.map),
            Buffer("at", padded(store.at)),
            Buffer("image", image),
            Buffer("tensor", data.reshape(1, -1), ("the whole tensor",), argument=False),
        ),
        1,
        THREADS,
    )


def random_image(words: int) -> Array:
    low = np.arange(0x1000, 0x1000 + 2 * words, 2, dtype=np.uint32) & np.uint32(0xFFFF)
    return (low | ((low + np.uint32(1)) << np.uint32(16))).astype(np.uint32)


# The innermost coordinate is a multiple of 16 bytes: silicon takes any other for an illegal instruction, as
# it does a store below zero (tma_limits.py). Two dimensions, 24 x 10 elements of bf16 in rows of 64 bytes;
# the box of 16 x 4 lies everywhere around it.
FLAT = tensor_map(BF16, (24, 10), (16, 4), pad=16)
AROUND = ((0, 0), (8, 6), (8, 3), (16, 0), (16, 8), (24, 0), (0, 10), (-8, 0), (0, -2), (-8, -3), (-16, 0))
AROUND += ((0, -4), (16, 9), (-8, 8), (1000, 1000), (-1000, 5), (0x7FFFFFF0, 0), (0, -0x80000000))


DIMS, BOX = (20, 7, 6, 5, 4), (16, 4, 3, 2, 3)


def swizzled() -> list[Load]:
    loads = []
    for swizzle, row in ((Swizzle.NONE, 64), (Swizzle.B32, 32), (Swizzle.B64, 64), (Swizzle.B128, 128)):
        for dtype in (BF16, F32, DataType.UINT8):
            inner = row // dtype.size
            full = tensor_map(dtype, (inner + 16, 40), (inner, 20), swizzle=swizzle, pad=32)
            name = f"swizzle{row if swizzle else 0}_{dtype.name.lower()}"
            unit = 16 // dtype.size
            loads.append(Load(name, full, ((0, 0), (unit, 30), (-unit, -3))))
        if swizzle:
            half = tensor_map(BF16, (row // 2, 12), (row // 4, 9), swizzle=swizzle)
            loads.append(Load(f"swizzle{row}_half_row", half, ((0, 0), (row // 4, 5))))
            offset = tensor_map(BF16, (row // 2, 12), (row // 2, 9), swizzle=swizzle)
            loads += [Load(f"swizzle{row}_at_{o}", offset, ((0, 0),), offset=o) for o in (128, 256, 512)]
    return loads


def ranked() -> list[Load]:
    """1 to 5 dimensions, each left on either side."""
    loads = [
        Load(
            "1d", tensor_map(BF16, (100,), (32,)), ((0,), (48,), (88,), (96,), (104,), (-8,), (-32,), (-40,))
        ),
        Load("2d", FLAT, AROUND),
        Load("2d_nan", tensor_map(BF16, (24, 10), (16, 4), pad=16, fill=Fill.NAN), AROUND[:14]),
    ]
    for rank in (3, 4, 5):
        inside = (8, *(n % 2 for n in range(1, rank)))
        places = [(0,) * rank, inside, (-96,) * rank, (16, *(d - 1 for d in DIMS[1:rank]))]
        for axis in range(rank):
            step = 8 if axis == 0 else 1
            for value in (
                -step,
                -(-(DIMS[axis] - BOX[axis] + 1) // step) * step,
                DIMS[axis] + 4 * (axis == 0),
            ):
                places.append((*inside[:axis], value, *inside[axis + 1 :]))
        loads.append(Load(f"{rank}d", tensor_map(BF16, DIMS[:rank], BOX[:rank]), tuple(places)))
    corner = (-8, 5, -1, 4, 2)
    loads.append(Load("5d_nan", tensor_map(F32, DIMS, BOX, fill=Fill.NAN), ((0,) * 5, corner)))
    return loads


def typed() -> list[Load]:
    """Every element type, with both fills where it is a float; contents are all kinds of floats."""
    loads = []
    for dtype in DataType:
        fills = (Fill.NONE, Fill.NAN) if dtype >= DataType.FLOAT16 else (Fill.NONE,)
        for fill in fills:
            map_ = tensor_map(dtype, (40, 10), (16, 6), fill=fill)
            count = tensor_bytes(map_) // 4
            words = fill_up(count, f32_one(171, count)).astype(np.uint32)
            if dtype in (DataType.FLOAT16, BF16):
                words = fill_up(2 * count, half_two(172, 2048, 10)[0]).astype(np.uint16).view(np.uint32)
            name = f"type_{dtype.name.lower()}{'_nan' if fill else ''}"
            loads.append(Load(name, map_, ((0, 0), (16, 2), (32, 4), (48, 7), (-16, -2), (0, 9)), data=words))
    return loads


def strided() -> list[Load]:
    """Element strides: every n-th element of the box's extent."""
    cases = {
        "inner_2": ((64, 8), (32, 4), (2, 1)),
        "outer_2": ((64, 8), (16, 4), (1, 2)),
        "outer_3": ((64, 20), (16, 8), (1, 3)),
        "outer_8": ((64, 40), (16, 32), (1, 8)),
        "both": ((64, 20), (32, 6), (4, 2)),
    }
    loads = []
    for name, (dims, box, strides) in cases.items():
        for fill in Fill:
            map_ = tensor_map(BF16, dims, box, element_strides=strides, fill=fill)
            places = ((0, 0), (8, 1), (-8, -1), (dims[0] - 8, dims[1] - 3), (-16, 0), (0, -3))
            loads.append(Load(f"element_stride_{name}{'_nan' if fill else ''}", map_, places))
    return loads


def stores() -> list[Store]:
    apart = ((0, 0), (16, 8), (8, 4), (24, 0), (0, 10), (0, 9))
    found = [
        Store("2d", FLAT, apart),
        Store("1d", tensor_map(BF16, (100,), (32,)), ((32,), (88,), (96,), (104,))),
    ]
    for rank in (3, 4, 5):
        high = (8, *(d - b + 1 for d, b in zip(DIMS[1:rank], BOX[1:rank], strict=True)))
        places = (high, (0,) * rank, (16, *high[1:]))
        found.append(Store(f"{rank}d", tensor_map(BF16, DIMS[:rank], BOX[:rank]), places))
    for swizzle, row in ((Swizzle.B32, 32), (Swizzle.B64, 64), (Swizzle.B128, 128)):
        map_ = tensor_map(BF16, (row // 2 + 8, 24), (row // 2, 12), swizzle=swizzle)
        found.append(Store(f"swizzle{row}", map_, ((0, 0), (8, 15))))
        found.append(Store(f"swizzle{row}_at_256", map_, ((0, 0),), offset=256))
    strided_map = tensor_map(BF16, (64, 20), (16, 6), element_strides=(1, 2))
    found.append(Store("element_stride", strided_map, ((0, 0), (40, 17))))
    return found


def reductions() -> list[Store]:
    """Every element type with the reductions that it has; the box overhangs one corner."""
    integers = ("add", "min", "max", "and", "or", "xor")
    found = []
    kinds = {
        DataType.UINT32: (*integers, "inc", "dec"),
        DataType.INT32: ("add", "min", "max"),
        DataType.UINT64: ("add", "min", "max", "and"),
        DataType.INT64: ("min", "max"),
        DataType.FLOAT16: ("add", "min", "max"),
        BF16: ("add", "min", "max"),
        F32: ("add",),
    }
    for dtype, names in kinds.items():
        map_ = tensor_map(dtype, (64, 12), (32, 8))
        words = tensor_bytes(map_) // 4
        if dtype.size == 2:
            pairs = half_two(181, 4096, 10 if dtype == DataType.FLOAT16 else 7)
            old, new = (
                fill_up(2 * words, x[:: 4096 // (2 * words)]).astype(np.uint16).view(np.uint32) for x in pairs
            )
        else:
            old, new = fill_up(words, f32_one(182, words)), fill_up(words, f32_one(183, words)[::-1])
            new = np.where(np.arange(words) % 3 == 0, old + np.uint32(1), new)
        for name in names:
            store = Store(f"{name}_{dtype.name.lower()}", map_, ((0, 0), (40, 7)), name)
            found.append(
                Store(
                    store.name, map_, store.at, name, data=old.astype(np.uint32), tile=new.astype(np.uint32)
                )
            )
    return found


LOADS = (*ranked(), *swizzled(), *typed(), *strided())
STORES = (*stores(), *reductions())

KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    *(partial(load_kernel, load) for load in LOADS),
    *(partial(store_kernel, store) for store in STORES),
)
