# SPDX-License-Identifier: Apache-2.0
"""Stores of several warps to one shared address that nothing orders: for review if they leave the same bits,
an error otherwise.

What must hold is of the PTX ISA, "Limitations on Mixed-size Data-races" (a race of accesses of one size has
the axioms), "Coherence Order" (the two stores have no order) and "Causality" (a read after both returns what
one of them wrote).
"""

from __future__ import annotations

import pytest

from gdnbench.sim.checker.happens_before import Cause, Verdict
from tests.sim.happens_before_cases import READY, check, wait

ENGINES = ("interpreter", "compiled")
EQUAL = {(Cause.EQUAL_STORES, Verdict.REVIEW)}
RACE = {(Cause.RACE, Verdict.ERROR)}
READ = "bar.sync 1;\nld.shared.b32 %r1, [%s];"


def found(body: str, engine: str) -> set[tuple[Cause | str, Verdict]]:
    """Causes and verdicts after a barrier."""
    return {(one.cause, one.verdict) for one in check(f"bar.sync 0;\n{body}", engine)}


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_bits_are_for_review(engine: str) -> None:
    """All lanes of both warps store 7, as a reduction of Triton stores a partial result."""
    assert found(f"mov.b32 %r2, 7;\nst.shared.b32 [%s], %r2;\n{READ}", engine) == EQUAL


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("value", "want"), [("7", EQUAL), ("%w", RACE)])
def test_matrices(value: str, want: set[tuple[Cause, Verdict]], engine: str) -> None:
    """stmatrix is a weak store ("stmatrix"); Triton stores small tensors by all warps that have them."""
    body = f"""and.b32 %r3, %t, 7;
mad.lo.u32 %r3, %r3, 16, %s;
mov.b32 %r2, {value};
stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], {{%r2}};"""
    assert found(f"{body}\n{READ}", engine) == want


@pytest.mark.parametrize("engine", ENGINES)
def test_other_bits_are_an_error(engine: str) -> None:
    """Each warp stores its number."""
    assert found(f"st.shared.b32 [%s], %w;\n{READ}", engine) == RACE


@pytest.mark.parametrize("engine", ENGINES)
def test_other_bits_at_one_of_two_addresses(engine: str) -> None:
    body = f"mov.b32 %r2, 7;\nst.shared.v2.b32 [%s], {{%r2, %w}};\n{READ}"
    assert found(body, engine) == RACE


@pytest.mark.parametrize("engine", ENGINES)
def test_a_read_must_be_ordered_after_both(engine: str) -> None:
    """Without the barrier each warp reads after its own store alone."""
    body = "mov.b32 %r2, 7;\nst.shared.b32 [%s], %r2;\nld.shared.b32 %r1, [%s];"
    assert found(body, engine) == EQUAL | RACE


@pytest.mark.parametrize("engine", ENGINES)
def test_stores_of_two_sizes_are_an_error(engine: str) -> None:
    """The axioms do not hold for a race of 32 and 64 bits."""
    body = "mov.b32 %r2, 0;\nmov.b64 %d0, 0;\n@%w0 st.shared.b32 [%s], %r2;\n@%w1 st.shared.b64 [%s], %d0;"
    assert found(f"{body}\n{READ}", engine) == RACE


@pytest.mark.parametrize("engine", ENGINES)
def test_lanes_of_one_warp_are_an_error(engine: str) -> None:
    """Compiled code has left the second value by the time that it reports the first store."""
    body = "@%w0 st.shared.b32 [%c], %t;\nadd.s32 %r2, %t, 1;\n@%one st.shared.b32 [%s+4], %r2;"
    assert found(f"{body}\n{READ}", engine) == RACE


@pytest.mark.parametrize("engine", ENGINES)
def test_a_later_store_must_be_ordered_after_both(engine: str) -> None:
    """Warp 1 stores what warp 0 stored before, and tells warp 2, whose store is another. The store of warp 0
    may still come after that."""
    body = f"""mov.b32 %r2, 7;
{READY}setp.eq.u32 %q, %w, 2;
@%w1 bra second;
@%q bra third;
@%one st.shared.b32 [%s], %r2;
@%one mbarrier.arrive.relaxed.cta.shared.b64 _, [full];
bra done;
second: {wait("full", "0", "late").replace("try_wait.parity", "try_wait.parity.relaxed.cta")}
@%second st.shared.b32 [%s], %r2;
@%second mbarrier.arrive.shared.b64 _, [empty];
bra done;
third: {wait("empty", "0", "later")}
mov.b32 %r2, 9;
st.shared.b32 [%s], %r2;
done:"""
    pairs = {
        (one.verdict, one.first.warp, one.second.warp)
        for one in check(f"bar.sync 0;\n{body}", engine, threads=96)
        if one.first is not None
    }
    assert pairs == {(Verdict.REVIEW, 0, 1), (Verdict.ERROR, 0, 2)}
