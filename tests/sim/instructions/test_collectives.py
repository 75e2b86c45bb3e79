# SPDX-License-Identifier: Apache-2.0
"""Warp collectives (PTX ISA 9.7.9.6, 9.7.13) on full warps, on sets of lanes and in divergent code."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault
from tests.sim.instructions.exact import decode, elementwise
from tests.sim.instructions.one_instruction import apply, check, one
from tests.sim.instructions.operands import float_bits, integers

Array = npt.NDArray[Any]
ALL = 0xFFFFFFFF


def warps(function: Callable[..., list[Any]], dtype: Any, *sources: Array) -> Array:
    """`function` of the 32 values of each warp."""
    rows = [function(*(s[i : i + 32].tolist() for s in sources)) for i in range(0, sources[0].size, 32)]
    return np.array([value for row in rows for value in row], dtype)


def values(seed: int, count: int = 8) -> Array:
    return np.random.default_rng(seed).integers(0, 1 << 32, 32 * count, dtype=np.uint32)


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl(engine: str, mode: str) -> None:
    """Lane offsets and segments of every size, by the pseudocode of 9.7.9.6."""
    random = np.random.default_rng(1)
    a = values(2, 32)
    b = np.where(
        random.random(a.size) < 0.2, random.integers(0, 1 << 32, a.size), random.integers(0, 32, a.size)
    )
    b = b.astype(np.uint32)
    width = 1 << random.integers(0, 6, a.size // 32)
    c = np.repeat((32 - width) << 8 | (0 if mode == "up" else 31), 32).astype(np.uint32)

    def source(lane: int, b: int, c: int) -> tuple[int, bool]:
        bval, cval, segmask = b & 31, c & 31, c >> 8 & 31
        high = (lane & segmask) | (cval & ~segmask & 31)
        low = lane & segmask
        j, valid = {
            "up": (lane - bval, lane - bval >= high),
            "down": (lane + bval, lane + bval <= high),
            "bfly": (lane ^ bval, lane ^ bval <= high),
            "idx": (low | (bval & ~segmask & 31), (low | (bval & ~segmask & 31)) <= high),
        }[mode]
        return (j, True) if valid else (lane, False)

    def shuffled(x: list[int], y: list[int], z: list[int]) -> list[int]:
        return [x[source(lane, y[lane], z[lane])[0]] for lane in range(32)]

    def validity(y: list[int], z: list[int]) -> list[bool]:
        return [source(lane, y[lane], z[lane])[1] for lane in range(32)]

    text = f"shfl.sync.{mode}.b32 %d0|%d1, %s0, %s1, %s2, -1;"
    actual, valid = apply(engine, text, [a, b, c], [np.uint32, np.bool_])
    check(actual, warps(shuffled, np.uint32, a, b, c), a, b, c)
    check(valid, warps(validity, np.bool_, b, c), b, c)


def test_vote(engine: str) -> None:
    random = np.random.default_rng(3)
    p = np.concatenate([random.random(32) < chance for chance in (0, 0.03, 0.5, 0.97, 1, 0.5, 0, 1)])
    text = """vote.sync.all.pred %d0, %s0, -1; vote.sync.any.pred %d1, %s0, -1;
    vote.sync.uni.pred %d2, %s0, -1; vote.sync.ballot.b32 %d3, %s0, -1; vote.sync.any.pred %d4, !%s0, -1;"""
    results = apply(engine, text, [p], [np.bool_, np.bool_, np.bool_, np.uint32, np.bool_])
    expected = [
        warps(lambda v: [all(v)] * 32, np.bool_, p),
        warps(lambda v: [any(v)] * 32, np.bool_, p),
        warps(lambda v: [all(v) or not any(v)] * 32, np.bool_, p),
        warps(lambda v: [sum(bit << i for i, bit in enumerate(v))] * 32, np.uint32, p),
        warps(lambda v: [not all(v)] * 32, np.bool_, p),
    ]
    for actual, want in zip(results, expected, strict=True):
        check(actual, want, p)


@pytest.mark.parametrize("width", [32, 64])
def test_match(engine: str, width: int) -> None:
    random = np.random.default_rng(4)
    a = np.concatenate([random.integers(0, kinds, 32) for kinds in (1, 2, 5, 100)]).astype(f"u{width // 8}")
    a = a * a.dtype.type(0x1_0000_0001 if width == 64 else 0x10001)

    def equal(v: list[int]) -> list[int]:
        return [sum((x == y) << i for i, y in enumerate(v)) for x in v]

    any_ = one(engine, f"match.any.sync.b{width} %d0, %s0, -1;", [a], np.uint32)
    check(any_, warps(equal, np.uint32, a), a)
    mask, same = apply(engine, f"match.all.sync.b{width} %d0|%d1, %s0, -1;", [a], [np.uint32, np.bool_])
    check(mask, warps(lambda v: [ALL if len(set(v)) == 1 else 0] * 32, np.uint32, a), a)
    check(same, warps(lambda v: [len(set(v)) == 1] * 32, np.bool_, a), a)


REDUCE: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("u32 s32", lambda x, y: x + y),
    "min": ("u32 s32", min),
    "max": ("u32 s32", max),
    "and": ("b32", lambda x, y: x & y),
    "or": ("b32", lambda x, y: x | y),
    "xor": ("b32", lambda x, y: x ^ y),
}


@pytest.mark.parametrize("op", REDUCE)
def test_redux(engine: str, op: str) -> None:
    names, function = REDUCE[op]
    for name in names.split():
        a = np.resize(integers(np.int32 if name == "s32" else np.uint32, 5), 256)
        want = warps(lambda v: [reduce(function, v) & ALL] * 32, np.uint32, a)
        check(one(engine, f"redux.sync.{op}.{name} %d0, %s0, -1;", [a], np.uint32), want, a)


@pytest.mark.parametrize("op", ["min", "max"])
def test_redux_f32(engine: str, op: str) -> None:
    """NaN is left out unless `.NaN` is spelled; -0 is below +0."""
    a = np.concatenate([float_bits("f32", 6, 230), np.full(32, 0x7FC00000, np.uint32)])[-512:]
    a = np.concatenate([a, np.resize(np.array([0, 0x80000000], np.uint32), 32)])
    a = np.resize(a, -(-a.size // 32) * 32)
    clean = np.where(elementwise(lambda x: decode(x, "f32").nan, np.bool_, a), np.uint32(0x3F800000), a)
    for data in (a, clean):
        for absolute in ("", ".abs"):
            for nan in ("", ".NaN"):

                def reduced(v: list[int], absolute: str = absolute, nan: str = nan) -> list[int]:
                    bits = [x & 0x7FFFFFFF if absolute else x for x in v]
                    numbers = [x for x in bits if not decode(x, "f32").nan]
                    if not numbers or (nan and len(numbers) < 32):
                        return [0x7FFFFFFF] * 32
                    key = lambda x: (decode(x, "f32").number, x >> 31 == 0)  # noqa: E731
                    return [(min if op == "min" else max)(numbers, key=key)] * 32

                text = f"redux.sync.{op}{absolute}{nan}.f32 %d0, %s0, -1;"
                check(one(engine, text, [data], np.uint32), warps(reduced, np.uint32, data), data)


def test_elect(engine: str) -> None:
    """One leader, the same in every lane and every time, and a member of the set."""
    text = """.reg .b32 %again; .reg .pred %q;
    elect.sync %d0|%d1, -1; elect.sync %again|%q, -1; setp.eq.b32 %d2, %again, %d0;
    elect.sync _|%d3, -1;"""
    lane, leads, same, only = apply(engine, text, [], [np.uint32, np.bool_, np.bool_, np.bool_])
    assert same.all()
    for i in range(0, lane.size, 32):
        assert len(set(lane[i : i + 32].tolist())) == 1
        assert np.flatnonzero(leads[i : i + 32]).tolist() == [int(lane[i])]
        assert leads[i : i + 32].tolist() == only[i : i + 32].tolist()


def test_sets_of_lanes_in_divergent_code(engine: str) -> None:
    """Both sides of a branch reduce and shuffle by themselves, each naming its lanes."""
    a = values(7)
    text = """.reg .b32 %lane; .reg .pred %low;
    mov.u32 %lane, %laneid;
    setp.lt.u32 %low, %lane, 12;
    @%low bra LOW;
    redux.sync.add.u32 %d0, %s0, 0xFFFFF000;
    shfl.sync.idx.b32 %d1, %s0, 20, 31, 0xFFFFF000;
    bra DONE;
    LOW:
    redux.sync.add.u32 %d0, %s0, 0x00000FFF;
    shfl.sync.idx.b32 %d1, %s0, 3, 31, 0x00000FFF;
    DONE:
    bar.warp.sync -1;
    activemask.b32 %d2;"""
    total, picked, mask = apply(engine, text, [a], [np.uint32] * 3)
    check(total, warps(lambda v: [sum(v[:12]) & ALL] * 12 + [sum(v[12:]) & ALL] * 20, np.uint32, a), a)
    check(picked, warps(lambda v: [v[3]] * 12 + [v[20]] * 20, np.uint32, a), a)
    assert (mask == ALL).all()


def test_masks_that_differ_at_one_place(engine: str) -> None:
    """One `redux` serves two sets of lanes at once."""
    a = values(8)
    lanes = np.arange(a.size) % 32
    mask = np.where(lanes % 2 == 0, 0x55555555, 0xAAAAAAAA).astype(np.uint32)
    actual = one(engine, "redux.sync.add.u32 %d0, %s0, %s1;", [a, mask], np.uint32)
    check(actual, warps(lambda v: [sum(v[0::2]) & ALL, sum(v[1::2]) & ALL] * 16, np.uint32, a), a)


def test_lanes_that_exited_are_not_waited_for(engine: str) -> None:
    """9.7.13.9: only non-exited threads of the mask take part."""
    a = values(9, 4)
    text = """.reg .b32 %lane; .reg .pred %high;
    mov.u32 %lane, %laneid; setp.ge.u32 %high, %lane, 20;
    @%high exit;
    redux.sync.add.u32 %d0, %s0, -1;"""
    want = warps(lambda v: [sum(v[:20]) & ALL] * 20 + [0] * 12, np.uint32, a)
    check(one(engine, text, [a], np.uint32), want, a)


def test_bar_warp_sync_at_two_places(engine: str) -> None:
    """Lanes meet in a barrier of one mask wherever they stand (9.7.13.2)."""
    text = """.reg .b32 %lane; .reg .pred %low;
    mov.u32 %lane, %laneid; setp.lt.u32 %low, %lane, 16;
    @%low bra LOW;
    bar.warp.sync -1;
    mov.b32 %d0, 1;
    bra DONE;
    LOW:
    bar.warp.sync -1;
    mov.b32 %d0, 2;
    DONE:"""
    assert one(engine, text, [], np.uint32).tolist() == ([2] * 16 + [1] * 16) * 4


def test_a_lane_outside_its_mask(engine: str) -> None:
    """Undefined by the ISA; a fault here."""
    with pytest.raises(KernelFault) as caught:
        one(engine, "redux.sync.add.u32 %d0, %s0, 0x7FFFFFFF;", [values(10)], np.uint32)
    assert caught.value.kind is FaultKind.DIVERGENCE


@pytest.mark.parametrize("partner", ["bar.sync 1;", "exit;", "bar.warp.sync 0xFFFF0000; exit;"])
def test_an_aligned_instruction_in_divergent_code(engine: str, partner: str) -> None:
    """Half of the warp executes `bar.sync`, the other half does not."""
    text = f""".reg .b32 %lane; .reg .pred %low;
    mov.u32 %lane, %laneid; setp.lt.u32 %low, %lane, 16;
    mov.b32 %d0, 0;
    @!%low bra HIGH;
    bar.sync 0;
    bra DONE;
    HIGH:
    {partner}
    DONE:
    """
    if partner == "exit;":
        # The other half has left before the barrier: then the warp is the lanes that are left.
        assert one(engine, text, [], np.uint32).tolist() == [0] * 128
        return
    with pytest.raises(KernelFault) as caught:
        one(engine, text, [], np.uint32)
    assert caught.value.kind is FaultKind.DIVERGENCE


def test_an_aligned_instruction_that_all_lanes_reach(engine: str) -> None:
    """Divergent code before it is no fault: the warp reconverges."""
    text = """.reg .b32 %lane; .reg .pred %low;
    mov.u32 %lane, %laneid; setp.lt.u32 %low, %lane, 16;
    mov.b32 %d0, 7;
    @%low bra LOW;
    mov.b32 %d0, 9;
    LOW:
    bar.sync 0;"""
    assert one(engine, text, [], np.uint32).tolist() == ([7] * 16 + [9] * 16) * 4
