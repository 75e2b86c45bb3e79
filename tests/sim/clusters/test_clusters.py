# SPDX-License-Identifier: Apache-2.0
"""Kernels whose CTAs form clusters: registers, shared memory of other CTAs, barriers, copies. Expectations
are the PTX ISA's definitions ("%clusterid" and others, "mapa", "barrier.cluster", "st.async",
"cp.async.bulk"), computed with NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gdnbench.sim.checker.happens_before import Verdict
from gdnbench.sim.run import run_ptx
from tests.sim.clusters.cluster_kernels import (
    ENGINES,
    INIT,
    LOAD,
    REDUCTION,
    RING,
    ROUNDS,
    SCHEDULES,
    STORE,
    STREAM,
    SYNC,
    TILES,
    WORDS,
    findings,
    kernel,
    run,
    wait,
)
from tests.sim.machine.tma_model import Map
from tests.subset import quick

EACH = quick(product(ENGINES, SCHEDULES), 0, 5)


def words(ctas: int) -> np.ndarray:
    return np.arange(ctas * WORDS, dtype=np.int32).reshape(ctas, WORDS)


@pytest.mark.parametrize(("engine", "schedule"), EACH)
def test_a_ring_of_clusters(engine: str, schedule: str) -> None:
    """Two clusters of four."""
    y, _ = run(kernel(RING), 8, cluster=(4, 1, 1), engine=engine, schedule=schedule)
    expected = words(8).reshape(2, 4, WORDS)
    np.testing.assert_array_equal(y.reshape(2, 4, WORDS), np.roll(expected, -1, axis=1))


@pytest.mark.parametrize(("size", "engine"), quick(product((1, 2, 8, 16), ENGINES), 6))
def test_sizes(size: int, engine: str) -> None:
    y, _ = run(kernel(RING), size, engine=engine)
    np.testing.assert_array_equal(y, np.roll(words(size), -1, axis=0))


def test_the_kernel_may_say_the_shape() -> None:
    y, _ = run(kernel(RING, ".explicitcluster .reqnctapercluster 2"), 2, cluster=(1, 1, 1))
    np.testing.assert_array_equal(y, np.roll(words(2), -1, axis=0))


REGISTERS = (
    *(f"{name}.{axis}" for name in ("clusterid", "nclusterid", "cluster_ctaid") for axis in "xyz"),
    *(f"cluster_nctaid.{axis}" for axis in "xyz"),
    *("cluster_ctarank", "cluster_nctarank"),
)
REGISTER_TEXT = (
    """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 y)
{
.reg .pred %p;
.reg .b32 %r<8>;
.reg .b64 %y, %d;
ld.param.u64 %y, [y];
mov.u32 %r0, %ctaid.x;
mov.u32 %r1, %ctaid.y;
mov.u32 %r2, %ctaid.z;
mad.lo.u32 %r1, %r2, 6, %r1;
mad.lo.u32 %r0, %r1, 4, %r0;
mad.wide.u32 %d, %r0, 64, %y;
"""
    + "".join(
        f"mov.u32 %r3, %{name};\nst.global.u32 [%d+{4 * index}], %r3;\n"
        for index, name in enumerate(REGISTERS)
    )
    + """mov.pred %p, %is_explicit_cluster;
selp.u32 %r3, 1, 0, %p;
st.global.u32 [%d+60], %r3;
ret;
}
"""
)


@pytest.mark.parametrize("engine", ENGINES)
def test_special_registers(engine: str) -> None:
    """A grid of 4 x 6 x 2 in clusters of 2 x 3 x 1."""
    grid, cluster = np.array((4, 6, 2)), np.array((2, 3, 1))
    y = np.zeros((*grid[::-1], 16), np.int32)
    run_ptx(REGISTER_TEXT, "k", (4, 6, 2), (1, 1, 1), [y], engine=engine, cluster=(2, 3, 1))
    for place in np.ndindex(*grid[::-1]):
        ctaid = np.array(place[::-1])
        inside = ctaid % cluster
        rank = inside[0] + cluster[0] * (inside[1] + cluster[1] * inside[2])
        expected = [*(ctaid // cluster), *(grid // cluster), *inside, *cluster, rank, 6, 0, 1]
        np.testing.assert_array_equal(y[place], expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_addresses(engine: str) -> None:
    """mapa and getctarank of shared and generic addresses, and windows: 16 words a CTA."""
    body = f"""
st.shared.b32 [%s], %rank;
{SYNC}
getctarank.shared::cluster.u32 %r2, %s;
getctarank.shared::cluster.u32 %r3, %peer;
cvt.u64.u32 %d0, %s;
cvta.shared.u64 %d0, %d0;
mapa.u64 %d1, %d0, %next;
getctarank.u64 %r4, %d1;
ld.u32 %r5, [%d1];
isspacep.shared::cta %p, %d0;
selp.u32 %r6, 1, 0, %p;
isspacep.shared::cta %p, %d1;
selp.u32 %r7, 1, 0, %p;
isspacep.shared::cluster %p, %d1;
selp.u32 %r8, 1, 0, %p;
cvta.to.shared::cluster.u64 %d2, %d1;
cvt.u32.u64 %r9, %d2;
sub.u32 %r9, %r9, %peer;
mapa.shared::cluster.u32 %r10, buffer, %next;
mov.u32 %r11, buffer;
mapa.shared::cluster.u32 %r11, %r11, %next;
sub.u32 %r10, %r10, %r11;
@%one st.global.v4.u32 [%out], {{%r2, %r3, %r4, %r5}};
@%one st.global.v4.u32 [%out+16], {{%r6, %r7, %r8, %r9}};
@%one st.global.u32 [%out+32], %r10;
{SYNC}"""
    y, _ = run(kernel(body), 4, engine=engine)
    for rank in range(4):
        following = (rank + 1) % 4
        assert y[rank, :9].tolist() == [rank, following, following, following, 1, 0, 1, 0, 0]


ATOMICS = f"""
st.shared.b32 [%s], 0;
{SYNC}
mapa.shared::cluster.u32 %r3, %s, 0;
atom.relaxed.cluster.shared::cluster.add.u32 %r2, [%r3], 1;
red.relaxed.cluster.shared::cluster.add.u32 [%r3], 256;
cvt.u64.u32 %d0, %r3;
cvta.shared::cluster.u64 %d0, %d0;
atom.relaxed.cluster.add.u32 %r4, [%d0], 16;
{SYNC}
@%first ld.shared.b32 %r2, [%s];
@!%first mov.b32 %r2, 0;
{STORE}"""


@pytest.mark.parametrize("engine", ENGINES)
def test_atomics_on_another_cta(engine: str) -> None:
    text = kernel(ATOMICS)
    y, _ = run(text, 4, engine=engine)
    assert (y[0] == 4 * (1 + 256 + 16)).all()
    assert not y[1:].any()
    assert findings(text, 4, engine) == []


# Each CTA sends its words to the next one, whose mbarrier counts an arrival of its own thread 0 and the
# bytes.
EXPECT = "@%one mbarrier.arrive.expect_tx.release.cluster.shared::cta.b64 _, [full], 128;\n"
TAKE = f"{wait()}ld.shared.b32 %r2, [%s];\n{STORE}"
SENDING = {
    "st.async": f"""{LOAD}{INIT}{EXPECT}
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%peer], %r1, [%there];
{TAKE}{SYNC}""",
    "st.shared::cluster": f"""{LOAD}{INIT}
st.shared::cluster.b32 [%peer], %r1;
bar.sync 0;
@%one mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%there];
{TAKE}{SYNC}""",
    "cp.async.bulk": f"""{LOAD}
mov.u32 %r4, buffer;
add.u32 %r5, %r4, 1024;
mapa.shared::cluster.u32 %r4, %r4, %next;
add.u32 %r6, %s, 1024;
st.shared.b32 [%r6], %r1;
fence.proxy.async;
{INIT}{EXPECT}
bar.sync 0;
@%one cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r4], [%r5], 128, [%there];
{TAKE}{SYNC}""",
    "arrive.expect_tx": f"""{LOAD}{INIT}
@%one mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%there], 128;
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%peer], %r1, [%there];
{TAKE}{SYNC}""",
}


@pytest.mark.parametrize(
    ("how", "engine", "schedule"), quick(product(SENDING, ENGINES, SCHEDULES), 0, 5, 12, 21, 29)
)
def test_what_is_sent_arrives(how: str, engine: str, schedule: str) -> None:
    y, _ = run(kernel(SENDING[how]), 4, engine=engine, schedule=schedule)
    np.testing.assert_array_equal(y, np.roll(words(4), 1, axis=0))


@pytest.mark.parametrize("how", quick(SENDING, 0, 2))
def test_what_is_sent_is_ordered(how: str) -> None:
    assert findings(kernel(SENDING[how]), 4) == []


RED_ASYNC = f"""{INIT}
st.shared.b32 [%s], %t;
{SYNC}
mapa.shared::cluster.u32 %r4, %s, 0;
mapa.shared::cluster.u32 %r5, %bar, 0;
@%first bra mine;
red.async.relaxed.cluster.add.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r4], 1000, [%r5];
bra over;
mine:
@%one mbarrier.arrive.expect_tx.release.cluster.shared::cta.b64 _, [full], 384;
{wait()}ld.shared.b32 %r2, [%s];
{STORE}
over:
{SYNC}"""


@pytest.mark.parametrize(("engine", "schedule"), EACH)
def test_red_async(engine: str, schedule: str) -> None:
    y, _ = run(kernel(RED_ASYNC), 4, engine=engine, schedule=schedule)
    np.testing.assert_array_equal(y[0], np.arange(WORDS) + 3000)


def test_red_async_is_ordered() -> None:
    assert findings(kernel(RED_ASYNC), 4) == []


# Every CTA adds its words to those of the CTA of rank 0 by a bulk reduction.
BULK_REDUCTION = f"""{LOAD}
mov.u32 %r4, buffer;
add.u32 %r5, %r4, 1024;
mapa.shared::cluster.u32 %r4, %r4, 0;
mapa.shared::cluster.u32 %r8, %bar, 0;
add.u32 %r6, %s, 1024;
st.shared.b32 [%r6], %r1;
st.shared.b32 [%s], 0;
fence.proxy.async;
{INIT}{SYNC}
and.pred %p, %one, %first;
@%p mbarrier.arrive.expect_tx.release.cluster.shared::cta.b64 _, [full], 512;
bar.sync 0;
@%one cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32
    [%r4], [%r5], 128, [%r8];
mov.b32 %r2, 0;
@!%first bra over;
{wait()}ld.shared.b32 %r2, [%s];
over:
{STORE}{SYNC}"""


@pytest.mark.parametrize(("engine", "schedule"), EACH)
def test_bulk_reduction(engine: str, schedule: str) -> None:
    y, _ = run(kernel(BULK_REDUCTION), 4, engine=engine, schedule=schedule)
    np.testing.assert_array_equal(y[0], words(4).sum(0))
    assert not y[1:].any()


def test_bulk_reduction_is_ordered() -> None:
    assert findings(kernel(BULK_REDUCTION), 4) == []


# The CTA of rank 0 sends its words to CTAs 0, 1 and 3, each of which expects them.
MULTICAST = f"""{INIT}
mov.b64 %d7, map;
cvta.param.u64 %d7, %d7;
mov.u32 %r4, buffer;
mov.b32 %r2, 0;
setp.eq.u32 %q, %rank, 2;
@%q bra over;
@%one mbarrier.arrive.expect_tx.release.cluster.shared::cta.b64 _, [full], 128;
and.pred %p, %one, %first;
@%p COPY
{wait()}ld.shared.b32 %r2, [%s];
over:
{STORE}{SYNC}"""
COPIES = {
    "bulk": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    " [%r4], [%x], 128, [full], 0xb;",
    "tensor": "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    ".multicast::cluster [%r4], [%d7, {0}], [full], 0xb;",
}


@pytest.mark.parametrize(("how", "engine", "schedule"), quick(product(COPIES, ENGINES, SCHEDULES), 0, 5, 8))
def test_multicast(how: str, engine: str, schedule: str) -> None:
    x = np.arange(4 * WORDS, dtype=np.int32)
    encoded = Map(x.ctypes.data, "u32", (4 * WORDS,), (), (WORDS,), 0).encode()
    text = kernel(MULTICAST.replace("COPY", COPIES[how]))
    y, result = run(text, 4, x=x, engine=engine, schedule=schedule, map_bytes=encoded, profile=True)
    expected = np.tile(np.arange(WORDS), (4, 1))
    expected[2] = 0
    np.testing.assert_array_equal(y, expected)
    assert result.counters.traffic["global to shared"] == 128


@pytest.mark.parametrize("how", quick(COPIES, 0))
def test_multicast_is_ordered(how: str) -> None:
    x = np.arange(4 * WORDS, dtype=np.int32)
    encoded = Map(x.ctypes.data, "u32", (4 * WORDS,), (), (WORDS,), 0).encode()
    assert findings(kernel(MULTICAST.replace("COPY", COPIES[how])), 4, x=x, map_bytes=encoded) == []


@pytest.mark.parametrize(
    ("size", "engine", "schedule"), quick(product((2, 4), ENGINES, (*SCHEDULES, "random:7")), 2, 8, 17)
)
def test_a_pipeline_of_multicasts(size: int, engine: str, schedule: str) -> None:
    x = np.arange(max(size, TILES) * WORDS, dtype=np.int32)
    y, _ = run(kernel(STREAM), size, x=x, engine=engine, schedule=schedule)
    expected = x[: TILES * WORDS].reshape(TILES, WORDS).sum(0)
    np.testing.assert_array_equal(y, np.tile(expected, (size, 1)))


@pytest.mark.parametrize("schedule", quick(("late", "early", "random:5"), 2))
def test_a_pipeline_is_ordered(schedule: str) -> None:
    """As in CUTLASS no thread fences the proxies between its reads and the next copy, which is reviewed."""
    x = np.arange(TILES * WORDS, dtype=np.int32)
    found = findings(kernel(STREAM), 2, x=x, schedule=schedule)
    assert {one.cause for one in found if one.verdict is Verdict.ERROR} == set()


def test_preferred_clusters() -> None:
    """The device may use clusters of 4 where there is room: `late` does, `early` does not, random seeds
    mix."""
    seen = set()
    for schedule in ("late", "early", "random:1", "random:3"):
        y, _ = run(
            kernel(f"{RING}@%one st.global.b32 [%out], %size;\n"),
            16,
            cluster=(2, 1, 1),
            preferred_cluster=(4, 1, 1),
            schedule=schedule,
        )
        sizes = y[:, 0].tolist()
        seen.add(tuple(sizes))
        at = 0
        while at < 16:
            size = sizes[at]
            assert sizes[at : at + size] == [size] * size
            assert size == 2 or at % 4 == 0
            following = np.roll(words(16)[at : at + size], -1, axis=0)
            np.testing.assert_array_equal(y[at : at + size, 1:], following[:, 1:])
            at += size
    assert (4,) * 16 in seen
    assert (2,) * 16 in seen
    assert len(seen) > 2


@pytest.mark.parametrize(("size", "engine", "schedule"), quick(product((2, 4, 8), ENGINES, SCHEDULES), 2, 12))
def test_a_reduction_over_the_cluster(size: int, engine: str, schedule: str) -> None:
    """Sums of squares, with one buffer that every round uses again."""
    x = np.arange(ROUNDS * size * 64, dtype=np.int32) ** 2
    options = {"x": x, "engine": engine, "schedule": schedule, "threads": 64}
    y, _ = run(kernel(REDUCTION), size, **options)
    np.testing.assert_array_equal(y[:, :ROUNDS], np.tile(x.reshape(ROUNDS, -1).sum(axis=1), (size, 1)))
    assert findings(kernel(REDUCTION), size, **options) == []
