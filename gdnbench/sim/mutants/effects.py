"""What an instruction does that must be ordered with other instructions: memory accesses, by proxy and space,
and releases to other threads."""

from __future__ import annotations

from enum import Flag, auto

from gdnbench.sim.ptx.ir import Instruction


class Effect(Flag):
    """Shared and global memory are accessed through the generic proxy by `READ_*`, `WRITE_*`, through the
    async proxy by `FILL` (writes shared memory), `DRAIN` (reads shared memory, writes global) and `PRODUCT`
    (reads shared memory). `TMEM_READ` and `TMEM_WRITE` access tensor memory, or free it. `SIGNAL`: an
    asynchronous operation that arrives at an mbarrier. `HAND_ON`: other threads may go on from here, knowing
    what this one did."""

    NONE = 0
    READ_SHARED = auto()
    WRITE_SHARED = auto()
    READ_GLOBAL = auto()
    WRITE_GLOBAL = auto()
    FILL = auto()
    DRAIN = auto()
    PRODUCT = auto()
    TMEM_READ = auto()
    TMEM_WRITE = auto()
    SIGNAL = auto()
    HAND_ON = auto()


_READS = ("ld", "ldu", "ldmatrix")
_WRITES = ("st", "stmatrix", "red", "multimem.st", "multimem.red")
_BOTH = ("atom", "multimem.ld_reduce")
_APART = ("param", "param::entry", "const", "local")
_ORDERED = ("release", "acq_rel")
_BULK = ("cp.async.bulk", "cp.async.bulk.tensor", "cp.reduce.async.bulk", "cp.reduce.async.bulk.tensor")
_OTHERS = {
    "cp.async": Effect.READ_GLOBAL | Effect.WRITE_SHARED,
    "mbarrier.init": Effect.WRITE_SHARED,
    "mbarrier.inval": Effect.WRITE_SHARED,
    "mbarrier.expect_tx": Effect.WRITE_SHARED,
    "mbarrier.complete_tx": Effect.WRITE_SHARED,
    "cp.async.mbarrier.arrive": Effect.SIGNAL,
    "st.async": Effect.FILL | Effect.SIGNAL,
    "red.async": Effect.FILL | Effect.SIGNAL,
    "discard": Effect.WRITE_GLOBAL,
    "tensormap.replace": Effect.WRITE_SHARED | Effect.WRITE_GLOBAL,
    "tensormap.cp_fenceproxy": Effect.READ_SHARED | Effect.WRITE_GLOBAL | Effect.HAND_ON,
    "tcgen05.ld": Effect.TMEM_READ,
    "tcgen05.ld.red": Effect.TMEM_READ,
    "tcgen05.st": Effect.TMEM_WRITE,
    "tcgen05.cp": Effect.TMEM_WRITE | Effect.PRODUCT,
    "tcgen05.shift": Effect.TMEM_WRITE,
    "tcgen05.alloc": Effect.WRITE_SHARED,
    "tcgen05.dealloc": Effect.TMEM_WRITE,
    "tcgen05.commit": Effect.SIGNAL,
    "wgmma.mma_async": Effect.PRODUCT,
    "membar": Effect.HAND_ON,
    "fence": Effect.HAND_ON,
    "clusterlaunchcontrol.try_cancel": Effect.FILL | Effect.SIGNAL,
}
_HANDING = ("mbarrier.arrive", "bar.", "barrier.")


def effects(ins: Instruction) -> Effect:
    """`NONE` of register arithmetic, waits, fences of proxies or of tcgen05, and what only hints. A barrier
    that waits hands on too; what it waits for is no matter here."""
    if ins.op in (*_READS, *_WRITES, *_BOTH):
        return _generic(ins)
    if ins.op in _BULK:
        return _bulk(ins)
    if ins.op.startswith("tcgen05.mma"):
        return Effect.PRODUCT | Effect.TMEM_READ | Effect.TMEM_WRITE
    if ins.op.startswith(_HANDING) and ins.op != "barrier.cluster.wait":
        return Effect.HAND_ON
    return _OTHERS.get(ins.op, Effect.NONE)


def _generic(ins: Instruction) -> Effect:
    """An address without a space may be in either. Nobody writes what `ld.global.nc` reads."""
    if ins.has(*_APART):
        return Effect.NONE
    everywhere = not ins.has("shared", "shared::cta", "shared::cluster", "global")
    found = Effect.HAND_ON if ins.has(*_ORDERED) else Effect.NONE
    reads, writes = ins.op not in _WRITES, ins.op not in _READS
    if everywhere or not ins.has("global"):
        found |= Effect.READ_SHARED if reads else Effect.NONE
        found |= Effect.WRITE_SHARED if writes else Effect.NONE
    if everywhere or ins.has("global"):
        found |= Effect.READ_GLOBAL if reads and not ins.has("nc") else Effect.NONE
        found |= Effect.WRITE_GLOBAL if writes else Effect.NONE
    return found


def _bulk(ins: Instruction) -> Effect:
    """Copies to shared memory arrive at an mbarrier, those from it belong to a group."""
    return Effect.DRAIN if ins.has("bulk_group") else Effect.FILL | Effect.SIGNAL
