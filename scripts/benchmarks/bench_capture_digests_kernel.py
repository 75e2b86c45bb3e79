# SPDX-License-Identifier: Apache-2.0
"""A decode step of the gated delta rule in Triton, which reads and writes each state once; used by
bench_capture_digests.py."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def delta_rule(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    g,
    beta,
    state,
    slots,
    o,
    scale,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One token of each sequence: q, k [B, 1, KEYS, DIM], v, o [B, 1, HEADS, DIM], g, beta [B, 1, HEADS],
    state [slots, HEADS, DIM of V, DIM of K] in place. Grid (B, HEADS, DIM / ROWS)."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    rows = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    slot = tl.load(slots + sequence).to(tl.int64)
    key_head = (sequence * KEYS + head // (HEADS // KEYS)) * DIM
    of_head = sequence * HEADS + head
    place = state + (slot * HEADS + head) * DIM * DIM + rows[:, None] * DIM + columns[None, :]
    held = tl.load(place).to(tl.float32) * tl.exp(tl.load(g + of_head))
    key = tl.load(k + key_head + columns).to(tl.float32)
    query = tl.load(q + key_head + columns).to(tl.float32)
    value = tl.load(v + of_head * DIM + rows).to(tl.float32)
    fresh = tl.load(beta + of_head) * (value - tl.sum(held * key[None, :], 1))
    held += fresh[:, None] * key[None, :]
    tl.store(place, held.to(state.dtype.element_ty))
    tl.store(o + of_head * DIM + rows, (tl.sum(held * query[None, :], 1) * scale).to(o.dtype.element_ty))
