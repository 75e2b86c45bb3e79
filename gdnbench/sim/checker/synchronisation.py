"""What each instruction of the machine means for the order of events.

`BEGINS` is called when a warp first hands an instruction to the machine, `ENDS` when the machine has done it
or has the warp wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gdnbench.sim.checker.events import Access, Event, Proxy
from gdnbench.sim.checker.mbarriers import Mbarrier
from gdnbench.sim.checker.order import Cause, Unordered, Verdict, unordered
from gdnbench.sim.checker.plain import cells
from gdnbench.sim.checker.views import Carried
from gdnbench.sim.machine.barriers import BarrierWait
from gdnbench.sim.machine.footprint import Footprint
from gdnbench.sim.machine.operands import constant, distinct, one, shared_address, uniform
from gdnbench.sim.machine.seam import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.tcgen05_access import cells_of
from gdnbench.sim.machine.tmem import column_of
from gdnbench.sim.ptx.ir import Immediate, Instruction

if TYPE_CHECKING:
    from gdnbench.sim.checker.follower import Follower

MBARRIER_BYTES = 8

Begin = Callable[["Follower", Warp, Instruction, Lanes, "tuple[Argument, ...]"], None]
End = Callable[
    ["Follower", Warp, Instruction, Lanes, "tuple[Argument, ...]", "Wait | None", "Results | Wait"], None
]


def _done(follower: Follower, warp: Warp, ins: Instruction, access: Access, *, init: bool = False) -> Event:
    return follower.events.done(warp.index, follower.views[warp.index].clock, ins, access, init=init)


def _addresses(ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> list[int]:
    """The mbarriers that the active lanes name."""
    return [shared_address(address, ins) for _, (address,) in distinct(lanes, one(sources[0]))]


# mbarriers


def _init(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    event = _done(follower, warp, ins, Access.WRITE, init=True)
    for address in _addresses(ins, lanes, sources):
        _write_word(follower, address, event)
        follower.mbarriers[address] = Mbarrier(event, follower.count)


def _inval(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    event = _done(follower, warp, ins, Access.WRITE)
    views = follower.views[warp.index]
    for address in _addresses(ins, lanes, sources):
        _write_word(follower, address, event)
        barrier = follower.mbarriers.pop(address, None)
        for user in barrier.users.values() if barrier is not None else ():
            why = unordered(user, event, views, "shared")
            if why is not None:
                follower.findings.pair(why, user, event, "shared", address)


def _write_word(follower: Follower, address: int, event: Event) -> None:
    starts = np.array([address], np.int64)
    follower.touch("shared", cells(starts, MBARRIER_BYTES, follower.sizes["shared"]), event)


def _arrive(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    event = _done(follower, warp, ins, Access.ATOMIC)
    views = follower.views[warp.index]
    counts = one(sources[1]) if len(sources) > 1 and not ins.op.endswith("expect_tx") else constant(1)
    for members, (name,) in distinct(lanes, one(sources[0])):
        address = shared_address(name, ins)
        barrier = follower.uses(address, event)
        if barrier is not None:
            arrivals = int(counts[members].sum())
            views.release(barrier.at(follower.joined(address, arrivals)), relaxed=ins.has("relaxed"))


def _use(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    event = _done(follower, warp, ins, Access.ATOMIC)
    for address in _addresses(ins, lanes, sources):
        follower.uses(address, event)


def _waited(
    follower: Follower,
    warp: Warp,
    ins: Instruction,
    lanes: Lanes,
    sources: tuple[Argument, ...],
    previous: Wait | None,
    results: Results | Wait,
) -> None:
    """test_wait and try_wait that succeeded."""
    if isinstance(results, Wait):
        return
    passed = lanes & (results[0] != 0)
    if not passed.any():
        return
    event = _done(follower, warp, ins, Access.ATOMIC)
    for address in _addresses(ins, passed, sources):
        barrier = follower.uses(address, event)
        if barrier is None:
            continue
        over = follower.phase(address) - 1
        relaxed = ins.has("relaxed")
        for late in barrier.waited(over, event, follower.views[warp.index], relaxed=relaxed):
            why = Unordered(
                Cause.PHASES,
                Verdict.ERROR,
                "an arrival after the first wait that the next phase waits for: the first can fall two"
                " phases behind",
            )
            follower.findings.pair(why, late, event, "shared", address)


# Named barriers


def _barrier(
    follower: Follower,
    warp: Warp,
    ins: Instruction,
    lanes: Lanes,
    sources: tuple[Argument, ...],
    previous: Wait | None,
    results: Results | Wait,
) -> None:
    """A round is known by its object, which the machine has while it is open and a waiting warp keeps."""
    views = follower.views[warp.index]
    if isinstance(previous, BarrierWait):
        views.acquire(follower.rounds[previous.use])
        return
    if isinstance(results, BarrierWait):
        use = results.use
    else:
        index = uniform(sources[0], lanes, "the barrier's number") & 0xFFFF_FFFF
        opened = follower.opened.pop(warp.index, None)
        found = opened if opened is not None else follower.cta.barriers.rounds.get(index)
        if found is None:
            return  # all that it waited for was this warp
        use = found
    carried = follower.rounds.setdefault(use, Carried.of(follower.count))
    views.release(carried)
    if not isinstance(results, Wait) and not ins.op.endswith("arrive"):
        views.acquire(carried)


def _barrier_begins(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    index = uniform(sources[0], lanes, "the barrier's number") & 0xFFFF_FFFF
    use = follower.cta.barriers.rounds.get(index)
    if use is not None:
        follower.opened[warp.index] = use


# Fences


def _fence_proxy(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    named = {"shared" if mod.startswith("shared") else mod for mod in ins.mods}
    spaces = [space for space in ("shared", "global") if space in named] or ["shared", "global"]
    follower.views[warp.index].fence_proxy(spaces)


def _fence(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    follower.variables.fence(follower.views[warp.index])


def _fence_init(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    follower.views[warp.index].fence_init()


def _before_sync(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    follower.views[warp.index].before_thread_sync()


def _after_sync(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    follower.views[warp.index].after_thread_sync()


# Groups and waits of one thread


def _group(name: str) -> Begin:
    def begin(
        follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
    ) -> None:
        getattr(follower.tokens[warp.index], name).commit(lanes)

    return begin


def _group_wait(name: str) -> End:
    def end(
        follower: Follower,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
        results: Results | Wait,
    ) -> None:
        if isinstance(results, Wait):
            return
        groups = getattr(follower.tokens[warp.index], name)
        if ins.op.endswith("wait_all"):
            known = groups.wait_all(lanes)
        else:
            operand = ins.sources[0]
            allowed = (
                operand.bits
                if isinstance(operand, Immediate)
                else uniform(sources[0], lanes, "the number of groups")
            )
            known = groups.wait(lanes, allowed, only_read=ins.has("read"))
        follower.views[warp.index].over(known)

    return end


def _wgmma(
    follower: Follower,
    warp: Warp,
    ins: Instruction,
    lanes: Lanes,
    sources: tuple[Argument, ...],
    previous: Wait | None,
    results: Results | Wait,
) -> None:
    """Each of the four warps reads the matrices in shared memory, as far as it knows them."""
    product = follower.cta.warpgroups.state(warp).open[-1]
    reads: tuple[Footprint, ...] = tuple(
        gather.footprint for gather in (product.a, product.b) if gather is not None
    )
    tokens = follower.begin(warp, ins, reads, (), Proxy.ASYNC)
    follower.tokens[warp.index].wgmma.add(lanes, tokens)


# Tensor memory


def _tmem_access(
    follower: Follower,
    warp: Warp,
    ins: Instruction,
    lanes: Lanes,
    sources: tuple[Argument, ...],
    previous: Wait | None,
    results: Results | Wait,
) -> None:
    held = follower.tokens[warp.index]
    loads = ins.op == "tcgen05.ld"
    token = follower.events.token()
    event = follower.events.begun(
        warp.index,
        follower.views[warp.index].clock,
        ins,
        Access.READ if loads else Access.WRITE,
        Proxy.TENSOR,
        token,
    )
    follower.tmem.touch(cells_of(warp, ins, lanes, sources), event)
    if loads:
        held.loads |= 1 << token
    else:
        held.stores |= 1 << token


def _wait_loads(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    held = follower.tokens[warp.index]
    follower.views[warp.index].over(held.loads)
    held.loads = 0


def _wait_stores(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    held = follower.tokens[warp.index]
    follower.views[warp.index].over(held.stores)
    held.stores = 0


def _allocated(
    follower: Follower,
    warp: Warp,
    ins: Instruction,
    lanes: Lanes,
    sources: tuple[Argument, ...],
    previous: Wait | None,
    results: Results | Wait,
) -> None:
    if isinstance(results, Wait):
        return
    address = shared_address(uniform(sources[0], lanes, "the address"), ins)
    columns = uniform(sources[1], lanes, "nCols")
    event = _done(follower, warp, ins, Access.WRITE)
    starts = np.array([address], np.int64)
    follower.touch("shared", cells(starts, 4, follower.sizes["shared"]), event)
    first = int(follower.cta.shared.view(address, 4).view(np.uint32)[0])
    follower.tmem.allocated(first, columns, event)


def _freed(
    follower: Follower, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> None:
    address = uniform(sources[0], lanes, "the address")
    columns = uniform(sources[1], lanes, "nCols")
    follower.tmem.freed(column_of(address), columns, _done(follower, warp, ins, Access.WRITE))


BEGINS: dict[str, Begin] = {
    "mbarrier.init": _init,
    "mbarrier.inval": _inval,
    **dict.fromkeys(
        (
            "mbarrier.arrive",
            "mbarrier.arrive.expect_tx",
            "mbarrier.arrive_drop",
            "mbarrier.arrive_drop.expect_tx",
        ),
        _arrive,
    ),
    "mbarrier.expect_tx": _use,
    "mbarrier.complete_tx": _use,
    "fence.proxy.async": _fence_proxy,
    "fence.mbarrier_init": _fence_init,
    "fence": _fence,
    "membar": _fence,
    "tcgen05.fence::before_thread_sync": _before_sync,
    "tcgen05.fence::after_thread_sync": _after_sync,
    "tcgen05.wait::ld": _wait_loads,
    "tcgen05.wait::st": _wait_stores,
    "tcgen05.dealloc": _freed,
    "cp.async.commit_group": _group("copies"),
    "cp.async.bulk.commit_group": _group("bulk"),
    "wgmma.commit_group": _group("wgmma"),
    **{
        f"{base}.{action}": _barrier_begins
        for base in ("bar", "bar.cta", "barrier", "barrier.cta")
        for action in ("sync", "arrive", "red")
    },
}

ENDS: dict[str, End] = {
    "mbarrier.test_wait": _waited,
    "mbarrier.try_wait": _waited,
    "cp.async.wait_group": _group_wait("copies"),
    "cp.async.wait_all": _group_wait("copies"),
    "cp.async.bulk.wait_group": _group_wait("bulk"),
    "wgmma.wait_group": _group_wait("wgmma"),
    "wgmma.mma_async": _wgmma,
    "tcgen05.ld": _tmem_access,
    "tcgen05.st": _tmem_access,
    "tcgen05.alloc": _allocated,
    **{
        f"{base}.{action}": _barrier
        for base in ("bar", "bar.cta", "barrier", "barrier.cta")
        for action in ("sync", "arrive", "red")
    },
}
