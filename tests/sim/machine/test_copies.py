# SPDX-License-Identifier: Apache-2.0
"""cp.async with its groups and barriers, bulk copies with theirs, st.async, reductions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.engine_interface import LANES, SHARED_BASE, Wait
from gdnbench.sim.machine.memory import GlobalMemory
from tests.sim.machine.bench import ALL, ONE, Bench

BAR = SHARED_BASE
TILE = SHARED_BASE + 1024
LANE = np.arange(LANES, dtype=np.uint64)
CP4 = "cp.async.ca.shared.global [%s], [%d1], 4"
CP16 = "cp.async.cg.shared.global [%s], [%d1], 16"
CP_SIZE = "cp.async.ca.shared.global [%s], [%d1], 16, %n"


class Data:
    """4 KB of counting words in global memory, and a bench."""

    def __init__(self, **options: object) -> None:
        room = np.arange(1024 + 8, dtype=np.uint32)
        self.words = room[-room.ctypes.data % 16 // 4 :][:1024]
        self.words[:] = np.arange(1024)
        self.memory = GlobalMemory()
        self.base = self.memory.add_array(self.words, "words")
        self.bench = Bench(memory=self.memory, **options)
        self.issue = self.bench.issue

    def tile(self, count: int, at: int = TILE) -> np.ndarray:
        return self.bench.shared.bytes[at : at + 4 * count].view(np.uint32)


def fault(kind: FaultKind, text: str):  # type: ignore[no-untyped-def]
    return pytest.raises(KernelFault, match=f"{kind}: .*{text}")


def test_groups_land_at_their_wait() -> None:
    data = Data()
    for group in range(3):
        data.issue(CP4, lanes=ALL, s=TILE + 128 * group + 4 * LANE, d1=data.base + 128 * group + 4 * LANE)
        data.issue("cp.async.commit_group", lanes=ALL)
    assert (data.tile(96) == 0xFFFF_FFFF).all()
    data.issue("cp.async.wait_group 2", lanes=ALL)
    np.testing.assert_array_equal(data.tile(32), np.arange(32))
    assert (data.tile(64, TILE + 128) == 0xFFFF_FFFF).all()
    data.issue("cp.async.wait_group 0", lanes=ALL)
    np.testing.assert_array_equal(data.tile(96), np.arange(96))


def test_wait_all_takes_what_was_not_committed() -> None:
    data = Data()
    data.issue(CP16, lanes=ALL, s=TILE + 16 * LANE, d1=data.base + 16 * LANE)
    data.issue("cp.async.wait_group 0", lanes=ALL)
    assert (data.tile(128) == 0xFFFF_FFFF).all()
    data.issue("cp.async.wait_all", lanes=ALL)
    np.testing.assert_array_equal(data.tile(128), np.arange(128))


def test_another_warps_wait_is_no_wait() -> None:
    data = Data()
    data.issue(CP4, lanes=ALL, s=TILE + 4 * LANE, d1=data.base + 4 * LANE)
    data.issue("cp.async.wait_all", warp=1, lanes=ALL)
    assert (data.tile(32) == 0xFFFF_FFFF).all()


def test_the_rest_is_zero() -> None:
    data = Data()
    sizes = LANE % 5 * 4
    data.issue(CP_SIZE, lanes=ALL, s=TILE + 16 * LANE, d1=data.base + 16 * LANE, n=sizes)
    data.issue("cp.async.wait_all", lanes=ALL)
    want = np.arange(128).reshape(32, 4) * (np.arange(4) < np.asarray(sizes)[:, None] // 4)
    np.testing.assert_array_equal(data.tile(128).reshape(32, 4), want)


def test_no_bytes_need_no_memory() -> None:
    """A lane that reads nothing may point anywhere: how kernels pad a ragged edge."""
    data = Data()
    data.issue(CP_SIZE, s=TILE, d1=64, n=0)
    data.issue("cp.async.wait_all")
    assert not data.tile(4).any()
    with fault(FaultKind.OUT_OF_BOUNDS, "nearest is words"):
        data.issue(CP_SIZE, s=TILE, d1=64, n=4)


def test_ignored_source() -> None:
    data = Data()
    text = "cp.async.ca.shared.global [%s], [%d1], 4, %p1"
    data.issue(text, lanes=ALL, s=TILE + 4 * LANE, d1=data.base + 4 * LANE, p1=LANE % 2)
    data.issue("cp.async.wait_all", lanes=ALL)
    np.testing.assert_array_equal(data.tile(32), np.arange(32) * (np.arange(32) % 2 == 0))


def test_late_copies_read_at_the_wait() -> None:
    data = Data()
    data.issue(CP4, s=TILE, d1=data.base)
    data.words[0] = 77
    data.issue("cp.async.wait_all")
    assert data.tile(1)[0] == 77


@pytest.mark.parametrize("noinc", ["", ".noinc"])
def test_barrier_of_copies(noinc: str) -> None:
    """Without .noinc the pending count rises first, so that it takes one more arrival a lane; PTX ISA."""
    data = Data()
    expected = LANES if noinc else 1
    data.issue("mbarrier.init.shared.b64 [%a], %n", a=BAR, n=expected)
    data.issue(CP4, lanes=ALL, s=TILE + 4 * LANE, d1=data.base + 4 * LANE)
    data.issue(f"cp.async.mbarrier.arrive{noinc}.shared.b64 [%a]", lanes=ALL, a=BAR)
    if not noinc:
        data.issue("mbarrier.arrive.shared.b64 _, [%a], 1", a=BAR)
    wait = data.issue("mbarrier.try_wait.parity.shared.b64 %p0, [%a], %n", a=BAR, n=0)
    assert isinstance(wait, Wait)
    assert (data.tile(32) == 0xFFFF_FFFF).all()
    assert wait.advance is not None
    assert wait.advance()
    assert wait.ready()
    np.testing.assert_array_equal(data.tile(32), np.arange(32))


@pytest.mark.parametrize(
    ("text", "values", "kind", "message"),
    [
        (CP16, {"s": 8}, FaultKind.MISALIGNED, "no multiple of 16"),
        (CP16, {"d1": 8}, FaultKind.MISALIGNED, "no multiple of 16"),
        (CP4, {"d1": 4096}, FaultKind.OUT_OF_BOUNDS, "4 past its end"),
        (CP4, {"s": 1 << 20}, FaultKind.OUT_OF_BOUNDS, "shared address"),
        (CP_SIZE, {"n": 17}, FaultKind.OUT_OF_BOUNDS, "17 of 16"),
        (CP16.replace("16", "8"), {}, FaultKind.MISALIGNED, "of 8 bytes"),
    ],
)
def test_faults(text: str, values: dict[str, int], kind: FaultKind, message: str) -> None:
    data = Data()
    good = {"s": TILE, "d1": data.base, "n": 16}
    with fault(kind, message):
        data.issue(
            text,
            **{
                name: value + values.get(name, 0) - (name == "n" and "n" in values) * 16
                for name, value in good.items()
            },
        )


LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%d1], %n, [%a]"
STORE = "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%s], %n"
WITHIN = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%t], [%s], %n, [%a]"


def test_copies_to_the_cluster_need_one() -> None:
    """An H200 answers with error 715: silicon/cluster_copies.py, `bulk_copies` of one CTA."""
    with fault(FaultKind.TRAP, "in a launch without clusters"):
        Data().issue(WITHIN, t=TILE + 4096, s=TILE, n=512, a=BAR)


def test_bulk_load_and_store() -> None:
    data = Data(cluster=(1, 1, 1))
    data.issue("mbarrier.init.shared.b64 [%a], %n", a=BAR, n=1)
    data.issue("mbarrier.arrive.expect_tx.shared.b64 _, [%a], %n", a=BAR, n=1024)
    data.issue(LOAD, s=TILE, d1=data.base, n=512, a=BAR)
    data.bench.cta.queue.drain()
    np.testing.assert_array_equal(data.tile(128), np.arange(128))
    data.issue(WITHIN, t=TILE + 4096, s=TILE, n=512, a=BAR)
    data.bench.cta.queue.drain()
    np.testing.assert_array_equal(data.tile(128, TILE + 4096), np.arange(128))
    assert data.bench.shared.phase[BAR // 8] == 1
    data.issue(STORE, s=TILE + 4096, d1=data.base + 2048, n=512)
    data.issue("cp.async.bulk.commit_group")
    data.issue("cp.async.bulk.wait_group 0")
    np.testing.assert_array_equal(data.words[512:640], np.arange(128))
    np.testing.assert_array_equal(data.words[640:], np.arange(640, 1024))


def test_bulk_groups_are_counted_from_the_newest() -> None:
    data = Data()
    data.bench.shared.bytes[TILE : TILE + 64] = 0
    for group in range(3):
        data.issue(STORE, s=TILE, d1=data.base + 64 * group, n=64)
        data.issue("cp.async.bulk.commit_group")
    data.issue("cp.async.bulk.wait_group 1")
    assert not data.words[:32].any()
    assert (data.words[32:48] == 0xFFFF_FFFF).all()


def test_an_empty_group_counts() -> None:
    data = Data()
    data.bench.shared.bytes[TILE : TILE + 64] = 0
    data.issue(STORE, s=TILE, d1=data.base, n=64)
    data.issue("cp.async.bulk.commit_group")
    data.issue("cp.async.bulk.commit_group")
    data.issue("cp.async.bulk.wait_group 1")
    assert not data.words[:16].any()


def test_groups_belong_to_lanes() -> None:
    data = Data()
    data.bench.shared.bytes[TILE : TILE + 64] = 0
    data.issue(STORE, s=TILE, d1=data.base, n=64)
    data.issue("cp.async.bulk.commit_group")
    data.issue("cp.async.bulk.wait_group 0", lanes=LANE == 1)
    assert (data.words[:16] == 0xFFFF_FFFF).all()
    data.issue("cp.async.bulk.wait_group 0", lanes=ONE)
    assert not data.words[:16].any()


def test_bulk_faults() -> None:
    data = Data()
    data.issue("mbarrier.init.shared.b64 [%a], %n", a=BAR, n=1)
    good = {"s": TILE, "d1": data.base, "n": 64, "a": BAR}
    data.issue(LOAD, **good)
    for change, kind, message in (
        ({"n": 24}, FaultKind.MISALIGNED, "size 0x18"),
        ({"s": TILE + 8}, FaultKind.MISALIGNED, "destination"),
        ({"d1": data.base + 4}, FaultKind.MISALIGNED, "source"),
        ({"d1": data.base + 4048}, FaultKind.OUT_OF_BOUNDS, "16 past its end"),
        ({"s": TILE + (1 << 20)}, FaultKind.OUT_OF_BOUNDS, "shared address"),
        ({"n": 0}, FaultKind.OUT_OF_BOUNDS, "of no bytes"),
    ):
        with fault(kind, message):
            data.issue(LOAD, **{**good, **change})
    with fault(FaultKind.OUT_OF_BOUNDS, "ctaMask 0x0040 in a cluster of 1 CTAs"):
        data.issue(LOAD.replace("bytes ", "bytes.multicast::cluster ").replace("[%a]", "[%a], %n"), **good)


def test_st_async() -> None:
    data = Data(cluster=(1, 1, 1))
    data.issue("mbarrier.init.shared.b64 [%a], %n", a=BAR, n=1)
    data.issue("mbarrier.arrive.expect_tx.shared.b64 _, [%a], %n", a=BAR, n=LANES * 16)
    text = "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%s], {%r0, %r1, %r2, %r3}, [%a]"
    values = {f"r{i}": 4 * LANE + np.uint64(i) for i in range(4)}
    data.issue(text, lanes=ALL, s=TILE + 16 * LANE, a=BAR, **values)
    assert (data.tile(128) == 0xFFFF_FFFF).all()
    data.bench.cta.queue.drain()
    np.testing.assert_array_equal(data.tile(128), np.arange(128))
    assert data.bench.shared.phase[BAR // 8] == 1
    with fault(FaultKind.MISALIGNED, "of 16 bytes"):
        data.issue(text, s=TILE + 8, a=BAR, **values)


def reduced(text: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Reduce `new` from shared memory into a copy of `old` in global memory."""
    memory = GlobalMemory()
    room = np.zeros(old.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    room[start : start + old.nbytes] = old.view(np.uint8)
    base = memory.add_array(room, "memory") + start
    bench = Bench(memory=memory)
    bench.shared.bytes[TILE : TILE + new.nbytes] = new.view(np.uint8)
    bench.issue(
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{text} [%d1], [%s], %n",
        d1=base,
        s=TILE,
        n=old.nbytes,
    )
    bench.issue("cp.async.bulk.commit_group")
    bench.issue("cp.async.bulk.wait_group 0")
    return room[start : start + old.nbytes].view(old.dtype)


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
def test_float_sums_round_to_nearest_even(name: str) -> None:
    """Against sums in f64 rounded once, which holds the exact sum of two numbers this near to 1."""
    kinds = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
    rng = np.random.default_rng(1)
    old, new = (rng.uniform(0.5, 2, 512).astype(kinds[name]) for _ in range(2))
    noftz = ".noftz" if name in ("f16", "bf16") else ""
    want = (old.astype(np.float64) + new.astype(np.float64)).astype(kinds[name])
    np.testing.assert_array_equal(reduced(f"add{noftz}.{name}", old, new), want)


def test_f32_sums_keep_subnormals() -> None:
    """As an sm_90 GPU does (tests/sim/silicon/copies.py); NaNs become the canonical one."""
    old = np.array([0x0000_0001, 0x8000_0001, 0x0080_0001, 0x7FC0_0000], np.uint32)
    new = np.array([0x3F80_0000, 0x8000_0001, 0x8080_0000, 0x3F80_0000], np.uint32)
    got = reduced("add.f32", old, new)
    assert got.tolist() == [0x3F80_0000, 0x8000_0002, 0x0000_0001, 0x7FFF_FFFF]


def test_bf16_sums_keep_subnormals() -> None:
    old, new = np.array([1] * 8, np.uint16), np.array([2] * 8, np.uint16)
    assert reduced("add.noftz.bf16", old, new).tolist() == [3] * 8


@pytest.mark.parametrize("operation", ["min", "max"])
def test_half_extremes(operation: str) -> None:
    """-0 is below +0, and a NaN gives way to a number (PTX ISA, "min")."""
    values = np.array([0x0000, 0x8000, 0x7FC0, 0x3F80, 0xBF80, 0x0001, 0x8001, 0x7F80], np.uint16)
    old, new = np.repeat(values, 8), np.tile(values, 8)
    rank = {0xBF80: 0, 0x8001: 1, 0x8000: 2, 0x0000: 3, 0x0001: 4, 0x3F80: 5, 0x7F80: 6}
    pick = min if operation == "min" else max

    def want(a: int, b: int) -> int:
        numbers = [value for value in (a, b) if value in rank]
        return pick(numbers, key=rank.__getitem__) if numbers else 0x7FFF

    got = reduced(f"{operation}.bf16", old, new)
    assert got.tolist() == [want(int(a), int(b)) for a, b in zip(old, new, strict=True)]


def test_integer_reductions() -> None:
    rng = np.random.default_rng(2)
    old, new = (rng.integers(0, 2**32, 256, np.uint32) for _ in range(2))
    pairs = list(zip(old.tolist(), new.tolist(), strict=True))
    signed = [(a - (a >> 31 << 32), b - (b >> 31 << 32)) for a, b in pairs]
    mask = 2**32 - 1
    for text, want in {
        "add.u32": [a + b & mask for a, b in pairs],
        "and.b32": [a & b for a, b in pairs],
        "or.b32": [a | b for a, b in pairs],
        "xor.b32": [a ^ b for a, b in pairs],
        "max.u32": [max(p) for p in pairs],
        "min.s32": [min(p) & mask for p in signed],
        "inc.u32": [0 if a >= b else a + 1 for a, b in pairs],
        "dec.u32": [b if a == 0 or a > b else a - 1 for a, b in pairs],
    }.items():
        assert reduced(text, old, new).tolist() == want, text
    with pytest.raises(UnsupportedError, match="min of f32"):
        reduced("min.f32", old, new)
