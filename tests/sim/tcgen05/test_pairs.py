# SPDX-License-Identifier: Apache-2.0
"""tcgen05 with .cta_group::2: products, copies, allocation and commits of a pair of CTAs.

Operands are small integers as in `test_products`. Which rows and columns each CTA has, and where D and A are
in tensor memory, is CuTe's word (`cute_layouts`, CtaGroup.TWO).
"""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine import mbarrier
from gdnbench.sim.machine.engine_interface import CLUSTER_STRIDE, Wait
from tests.messages import wording
from tests.sim.tcgen05.cute_layouts import shared_layout
from tests.sim.tcgen05.products import (
    KIND,
    STEP,
    Operand,
    image,
    instruction_descriptor,
    matrix_descriptor,
    put_tmem,
    result,
)
from tests.sim.tcgen05.tensor_machine import BARRIER, ONE, Machine, Pair
from tests.subset import quick

BLOCKS = 4  # products, along the 128 bytes of K of the widest swizzle
A_AT, B_AT, COLUMN, A_COLUMN = 16 * 1024, 96 * 1024, 40, 320


def integers(rng: np.random.Generator, rows: int, depth: int) -> np.ndarray:
    return rng.integers(-3, 4, (rows, depth)).astype(np.float32)


def halves(matrix: np.ndarray, rank: int) -> np.ndarray:
    rows = len(matrix) // 2
    return matrix[rank * rows : (rank + 1) * rows]


def multiply(
    name: str, m: int, n: int, a_layout: tuple[str, bool] | None, b_layout: tuple[str, bool], *,
    issuer: int = 0, schedule: str = "late", disable: tuple[int, ...] = (),
) -> tuple[list[np.ndarray], np.ndarray]:  # fmt: skip
    """(what each CTA of the machine gives, what NumPy gives); A in TMEM if `a_layout` is None."""
    kind = KIND[name]
    step = STEP[kind]
    rng = np.random.default_rng([m, n])
    depth = BLOCKS * step
    a, b = integers(rng, m, depth), integers(rng, n, depth)
    pair = Pair(schedule=schedule)
    assert pair.alloc_both(512) == [0, 0]
    idesc = instruction_descriptor(
        name, name, m, n, a_mn=a_layout is not None and a_layout[1], b_mn=b_layout[1]
    )
    right = Operand(shared_layout(b_layout[0], name, b_layout[1], n // 2, depth), B_AT, name)
    left = None
    if a_layout is not None:
        left = Operand(shared_layout(a_layout[0], name, a_layout[1], m // 2, depth), A_AT, name)
    for rank in range(2):
        pair.of(rank)
        right.put(pair, halves(b, rank))
        if left is not None:
            left.put(pair, halves(a, rank))
        else:
            put_tmem(pair, A_COLUMN, name, m, halves(a, rank), ctas=2)
    pair.of(issuer)
    for block in range(BLOCKS):
        source = A_COLUMN + 8 * block if left is None else left.descriptor(step * block)
        pair.mma(
            kind, COLUMN, source, right.descriptor(step * block), idesc, a_in_tmem=left is None,
            accumulate=block > 0, ctas=2, disable=disable,
        )  # fmt: skip
    pair.finish(ctas=2)
    return [result(pair.of(rank), COLUMN, m, n, ctas=2).view(np.float32) for rank in range(2)], a @ b.T


CASES = [
    (name, m, n, a_layout, b_layout)
    for name, layouts in (
        ("bf16", [("SW128", False), ("SW64", True), None]),
        ("tf32", [("SW32", False), ("SW128_32B", True), None]),
        ("e4m3", [("SW128", False), ("SW64", True), None]),
    )
    for m in (128, 256)
    for a_layout in layouts
    for n, b_layout in ((128 if name == "e4m3" else 64, layouts[1]), (16, layouts[0]), (96, layouts[0]))
]


@pytest.mark.parametrize(("name", "m", "n", "a_layout", "b_layout"), quick(CASES, 0, 12, 34))
def test_products(
    name: str, m: int, n: int, a_layout: tuple[str, bool] | None, b_layout: tuple[str, bool]
) -> None:
    got, expected = multiply(name, m, n, a_layout, b_layout)
    for rank in range(2):
        np.testing.assert_array_equal(got[rank], halves(expected, rank))


@pytest.mark.parametrize("schedule", ["early", "random:3"])
def test_schedules(schedule: str) -> None:
    got, expected = multiply("bf16", 256, 32, ("SW128", False), ("SW128", False), schedule=schedule)
    np.testing.assert_array_equal(np.concatenate(got), expected)


def test_the_odd_cta_may_issue() -> None:
    """Table 46: a single thread of the pair."""
    got, expected = multiply("bf16", 256, 32, ("SW128", False), ("SW128", False), issuer=1)
    np.testing.assert_array_equal(np.concatenate(got), expected)


def test_integers() -> None:
    """kind::i8: D of s32 is 2, s8 is 1 (table 42)."""
    rng = np.random.default_rng(8)
    a, b = rng.integers(-128, 128, (256, 128)), rng.integers(-128, 128, (64, 128))
    pair = Pair()
    pair.alloc_both(64)
    left, right = (Operand(shared_layout("SW128", "e4m3", False, rows, 128), at, "s8")
                   for rows, at in ((128, A_AT), (32, B_AT)))  # fmt: skip
    for rank in range(2):
        left.put(pair.of(rank), halves(a, rank))
        right.put(pair, halves(b, rank))
    idesc = 2 << 4 | 1 << 7 | 1 << 10 | 64 >> 3 << 17 | 256 >> 4 << 24
    for k in range(0, 128, 32):
        pair.of(0).mma("i8", 0, left.descriptor(k), right.descriptor(k), idesc, accumulate=k > 0, ctas=2)
    pair.finish(ctas=2)
    got = [result(pair.of(rank), 0, 256, 64, ctas=2).view(np.int32) for rank in range(2)]
    np.testing.assert_array_equal(np.concatenate(got), a @ b.T)


def test_disabled_lanes() -> None:
    """Eight registers: the lanes of the even CTA, then those of the odd one."""
    masks = (0, 0xFFFF_FFFF, 0, 0, 0, 0, 0, 0x8000_0001)
    pair = Pair(track=False)
    pair.alloc_both(64)
    for rank in range(2):
        pair.of(rank).store("32x32b", 8, 0, np.full((32, 8), 7, np.uint32), warp=1)
        pair.store("32x32b", 8, 0, np.full((32, 8), 7, np.uint32), warp=3)
    rng = np.random.default_rng(2)
    a, b = integers(rng, 256, 16), integers(rng, 16, 16)
    layouts = [shared_layout("SW32", "bf16", False, rows, 16) for rows in (128, 8)]
    left, right = (Operand(layout, at, "bf16") for layout, at in zip(layouts, (A_AT, B_AT), strict=True))
    for rank in range(2):
        left.put(pair.of(rank), halves(a, rank))
        right.put(pair, halves(b, rank))
    idesc = instruction_descriptor("bf16", "bf16", 256, 16)
    pair.of(0).mma("f16", 0, left.descriptor(0), right.descriptor(0), idesc, ctas=2, disable=masks)
    pair.finish(ctas=2)
    expected = (a @ b.T).view(np.uint32)
    disabled = np.zeros(256, bool)
    disabled[32:64] = disabled[[224, 255]] = True
    expected[disabled, :8] = 7
    got = np.concatenate([image(pair.of(rank), 0, 8) for rank in range(2)])
    np.testing.assert_array_equal(got, expected[:, :8])


@pytest.mark.parametrize(
    ("kind", "m", "n", "code"),
    [
        ("bf16", 64, 32, "M = 64; cta_group::2 has M = 128 and 256"),
        ("bf16", 256, 24, "N = 24; a multiple of 16 from 16 to 256 is needed"),
    ],
)
def test_illegal_shapes(kind: str, m: int, n: int, code: str) -> None:
    pair = Pair()
    pair.alloc_both(32)
    descriptor = matrix_descriptor(A_AT, 16, 256, 6)
    with pytest.raises(KernelFault, match=code):
        pair.mma("f16", 0, descriptor, descriptor, instruction_descriptor(kind, kind, m, n), ctas=2)


def test_copies() -> None:
    """Each CTA copies from its own shared memory."""
    pair = Pair()
    pair.alloc_both(32)
    rng = np.random.default_rng(4)
    data = rng.integers(0, 1 << 32, (2, 128, 4), dtype=np.uint32)
    for rank in range(2):
        # Without a swizzle: 8 rows of 16 bytes, then the next 8 after the stride.
        pair.of(rank).write(pair.cta.shared.origin + A_AT, data[rank])
    descriptor = matrix_descriptor(A_AT, 16, 128, 0)
    pair.of(0).issue("tcgen05.cp.cta_group::2.128x128b [%r], %d;", lanes=ONE, r=8, d=descriptor)
    pair.finish(ctas=2)
    for rank in range(2):
        np.testing.assert_array_equal(pair.ctas[rank].tmem.cells[:, 8:12], data[rank])


def test_allocation_waits_for_both() -> None:
    """The columns that both get are free in both: here CTA 1 has given back the lower ones."""
    pair = Pair(schedule="early")
    assert pair.alloc_both(64) == [0, 0]
    assert pair.alloc_both(32, slot=BARRIER + 16) == [64, 64]
    text = "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r, 64;"
    waits = pair.of(0).issue(text, r=0)
    assert isinstance(waits, Wait)
    assert not waits.over()
    pair.of(1).issue(text, r=0)
    assert waits.over()
    assert pair.alloc_both(32) == [96, 96]
    pair.of(0).issue(text, r=0, previous=waits)
    assert pair.alloc_both(32) == [0, 0]


def test_commit_arrives_at_both() -> None:
    pair = Pair()
    for cta in pair.ctas:
        mbarrier.init(cta.shared, cta.shared.origin + BARRIER, 1)
    text = (
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r], %m;"
    )
    pair.of(0).issue(text, lanes=ONE, r=BARRIER, m=3)
    pair.ctas[0].queue.drain()
    for cta in pair.ctas:
        assert mbarrier.is_complete(cta.shared, cta.shared.origin + BARRIER, 0)
    (note,) = pair.launch.notes
    assert "tracks nothing" in note.message


def fault(act: object, kind: FaultKind, message: str) -> None:
    with pytest.raises(KernelFault, match=message) as caught:
        act()
    assert caught.value.kind is kind


def test_a_cta_without_a_peer() -> None:
    text = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r], 32;"
    fault(lambda: Machine().issue(text, r=BARRIER), FaultKind.PAIR, wording("sim.machine.pair-alone", ctas=1))


def test_different_sizes() -> None:
    pair = Pair()
    text = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r], {};"
    pair.of(0).issue(text.format(32), r=BARRIER)
    fault(
        lambda: pair.of(1).issue(text.format(64), r=BARRIER + CLUSTER_STRIDE),
        FaultKind.PAIR,
        wording("sim.machine.pair-differs", op="tcgen05.alloc", columns="64 columns", rank=1),
    )


def test_different_columns_are_freed() -> None:
    pair = Pair()
    pair.alloc_both(32)
    pair.alloc_both(32, slot=BARRIER + 16)
    text = "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r, 32;"
    pair.of(0).issue(text, r=0)
    fault(
        lambda: pair.of(1).issue(text, r=32),
        FaultKind.PAIR,
        wording("sim.machine.pair-differs", op="tcgen05.dealloc", peer=0),
    )


def test_a_peer_that_has_exited() -> None:
    """An allocation that waits, and a product in flight."""
    pair = Pair()
    text = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r], 32;"
    waits = pair.of(0).issue(text, r=BARRIER)
    pair.ctas[1].finish()
    assert isinstance(waits, Wait)
    assert waits.over()
    gone = wording("sim.machine.pair-exited", op="tcgen05.alloc", rank=1)
    fault(lambda: pair.issue(text, r=BARRIER, previous=waits), FaultKind.EXITED, gone)

    pair = Pair()
    pair.alloc_both(32)
    for rank in range(2):
        pair.of(rank).write(pair.cta.shared.origin + A_AT, np.zeros(8192, np.uint8))
    descriptor = matrix_descriptor(A_AT, 16, 256, 6)
    pair.of(0).mma("f16", 0, descriptor, descriptor, instruction_descriptor("bf16", "bf16", 256, 16), ctas=2)
    assert pair.ctas[1].cluster is not None
    pair.ctas[1].cluster.exited(1)
    gone = wording("sim.machine.pair-exited", op="tcgen05.mma", rank=1)
    fault(pair.ctas[0].queue.drain, FaultKind.EXITED, gone)
