"""Finds the sequence that has the n-th smallest slot, in one warp. CuTe DSL, sm_90 and later.

Each lane holds `len(keys)` slots: key i of lane t is that of sequence 32 i + t, and negative where there is
no such sequence or where it is padding. In the order, negative keys come last, and equal keys in the order of
the sequences. The n-th smallest slot is found bit by bit, from the highest bit of the largest one: a bit is
set if at most n keys are below the number with it.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.plan import WARP
from gdnbench_kernels.state_slots import PADDING

I32 = cutlass.Int32
ALL = "0xffffffff"
"""The lanes of a warp."""


@cute.jit
def sequence_at(place: cutlass.Int32, keys: list[Any]) -> cutlass.Int32:
    """The sequence whose key is number `place` (from 0) in the order, in all lanes of the warp."""
    found = I32(0)
    bit = highest_bit(keys)
    while bit > 0:
        if count_below(keys, found | bit) <= place:
            found = found | bit
        bit = bit >> 1
    valid = count_below(keys, I32(-0x80000000))
    if place >= valid:
        found = I32(PADDING)
    return sequence_with(keys, found, place - count_below(keys, found))


def highest_bit(keys: list[Any]) -> Any:
    """The highest bit of the largest key of the warp; 0 if none is positive."""
    maxima = "".join(f" max.s32 x, x, {{$r{place}}};" for place in range(len(keys)))
    return cute.arch.inline_ptx(
        f"{{ .reg .b32 x; mov.b32 x, 0; {maxima} redux.sync.max.s32 x, x, {ALL}; clz.b32 x, x;"
        " shr.u32 {$w0}, 0x80000000, x; }",
        write_only_types=[I32],
        read_only_args=keys,
    )


def count_below(keys: list[Any], bound: Any) -> Any:
    """How many keys of the warp are below `bound`, as numbers without a sign."""
    counted = "".join(
        f" setp.lt.u32 p, {{$r{place + 1}}}, {{$r0}}; @p add.s32 n, n, 1;" for place in range(len(keys))
    )
    return cute.arch.inline_ptx(
        f"{{ .reg .pred p; .reg .b32 n; mov.b32 n, 0; {counted} redux.sync.add.s32 {{$w0}}, n, {ALL}; }}",
        write_only_types=[I32],
        read_only_args=[bound, *keys],
    )


def sequence_with(keys: list[Any], key: Any, number: Any) -> Any:
    """The sequence that is number `number` (from 0) of those with that key. `before` counts those of earlier
    places, `mine` also those of lower lanes."""
    looked = "".join(
        f" setp.eq.u32 p, {{$r{place + 3}}}, {{$r0}}; vote.sync.ballot.b32 same, p, {ALL};"
        " and.b32 mine, same, lower; popc.b32 mine, mine; add.s32 mine, mine, before;"
        f" setp.eq.and.u32 p, mine, {{$r1}}, p; @p add.s32 found, {{$r2}}, {place * WARP};"
        " popc.b32 same, same; add.s32 before, before, same;"
        for place in range(len(keys))
    )
    return cute.arch.inline_ptx(
        "{ .reg .pred p; .reg .b32 same, mine, lower, before, found; mov.b32 found, 0; mov.b32 before, 0;"
        f" shl.b32 lower, 1, {{$r2}}; sub.s32 lower, lower, 1; {looked}"
        f" redux.sync.or.b32 {{$w0}}, found, {ALL}; }}",
        write_only_types=[I32],
        read_only_args=[key, number, cute.arch.lane_idx(), *keys],
    )
