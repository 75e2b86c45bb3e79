"""What each instruction of the machine means for the order of events.

`BEGINS` is called when a warp first hands an instruction to the machine, `ENDS` when the machine has done it
or has the warp wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gdnbench.sim.checker.cta_exit import check_unused
from gdnbench.sim.checker.events import Access, Event, Proxy
from gdnbench.sim.checker.happens_before import Cause, Pair, Unordered, Verdict, unordered
from gdnbench.sim.checker.issued import Issued
from gdnbench.sim.checker.lanes import UNSURE, lanes_of, part_of
from gdnbench.sim.checker.load_store import cells, is_wide
from gdnbench.sim.checker.mbarriers import TWO_PHASES, Mbarrier
from gdnbench.sim.checker.named_barriers import BARRIER, ROUNDS, Arrivals
from gdnbench.sim.checker.shadow import Cells
from gdnbench.sim.checker.vector_clocks import SPACES, Carried
from gdnbench.sim.machine.barriers import BarrierWait, Round
from gdnbench.sim.machine.engine_interface import Lanes, Results, Wait
from gdnbench.sim.machine.footprint import Footprint
from gdnbench.sim.machine.operands import constant, distinct, one, shared_address, uniform
from gdnbench.sim.machine.tcgen05_access import cells_of
from gdnbench.sim.machine.tmem import column_of
from gdnbench.sim.ptx.ir import Immediate

if TYPE_CHECKING:
    from gdnbench.sim.checker.cta_detector import Follower

MBARRIER_BYTES = 8

Begin = Callable[["Follower", Issued], None]
End = Callable[["Follower", Issued, "Wait | None", "Results | Wait"], None]


def _done(follower: Follower, issued: Issued, access: Access, *, init: bool = False) -> Event:
    warp = issued.warp.index
    return follower.events.done(
        warp, follower.views[warp].clock, issued.ins, access, lane=issued.lane, init=init
    )


def _addresses(issued: Issued, lanes: Lanes) -> list[int]:
    """The mbarriers that these lanes name."""
    named = distinct(lanes, one(issued.sources[0]))
    return [shared_address(address, issued.ins) for _, (address,) in named]


# mbarriers


def _init(follower: Follower, issued: Issued) -> None:
    event = _done(follower, issued, Access.WRITE, init=True)
    for address in _addresses(issued, issued.lanes):
        word = _word(follower, address)
        follower.touch("shared", word, event)
        follower.objects[word] = True
        follower.mbarriers[address] = Mbarrier(event, follower.count)


def _inval(follower: Follower, issued: Issued) -> None:
    event = _done(follower, issued, Access.WRITE)
    views = follower.views[issued.warp.index]
    for address in _addresses(issued, issued.lanes):
        word = _word(follower, address)
        follower.objects[word] = False
        follower.touch("shared", word, event)
        barrier = follower.mbarriers.pop(address, None)
        if barrier is None:
            continue
        check_unused(follower, address, barrier, event)
        for user in barrier.users.values():
            why = unordered(user, event, views, "shared", Pair(user.lane, event.lane))
            if why is not None:
                follower.findings.pair(why, user, event, "shared", address)


def _word(follower: Follower, address: int) -> Cells:
    """An mbarrier's cells of shared memory."""
    return cells(np.array([address], np.int64), MBARRIER_BYTES, follower.sizes["shared"])


def _arrive(follower: Follower, issued: Issued) -> None:
    event = _done(follower, issued, Access.ATOMIC)
    views = follower.views[issued.warp.index]
    expects = issued.ins.op.endswith("expect_tx")
    counts = one(issued.sources[1]) if len(issued.sources) > 1 and not expects else constant(1)
    for members, (name,) in distinct(issued.lanes, one(issued.sources[0])):
        address = shared_address(name, issued.ins)
        barrier = follower.uses(address, event)
        if barrier is not None:
            if expects:
                barrier.expects = event
            arrivals = int(counts[members].sum())
            into = barrier.at(follower.joined(address, arrivals))
            relaxed = issued.ins.has("relaxed")
            views.release(into, part_of(lanes_of(members), issued.warp.exists), relaxed=relaxed)
            if relaxed:
                follower.variables.signals(views, into)


def _use(follower: Follower, issued: Issued) -> None:
    event = _done(follower, issued, Access.ATOMIC)
    for address in _addresses(issued, issued.lanes):
        barrier = follower.uses(address, event)
        if barrier is not None and issued.ins.op == "mbarrier.expect_tx":
            barrier.expects = event


def _waited(follower: Follower, issued: Issued, previous: Wait | None, results: Results | Wait) -> None:
    """test_wait and try_wait that succeeded."""
    if isinstance(results, Wait):
        return
    passed = issued.lanes & (results[0] != 0)
    if not passed.any():
        return
    views, part = follower.views[issued.warp.index], part_of(passed, issued.warp.exists)
    event = _done(follower, issued, Access.ATOMIC)
    for address in _addresses(issued, passed):
        barrier = follower.uses(address, event)
        if barrier is None:
            continue
        over = follower.phase(address) - 1
        relaxed = issued.ins.has("relaxed")
        for late in barrier.waited(over, event, views, part, relaxed=relaxed):
            why = Unordered(Cause.PHASES, Verdict.ERROR, TWO_PHASES)
            follower.findings.pair(why, late, event, "shared", address)
        if relaxed and over >= 0:
            follower.variables.sees(views, barrier.at(over))


# Named barriers


def _barrier(follower: Follower, issued: Issued, previous: Wait | None, results: Results | Wait) -> None:
    """A round is known by its object, which the machine has while it is open and a waiting warp keeps."""
    views, part = follower.views[issued.warp.index], issued.part
    if isinstance(previous, BarrierWait):
        views.acquire(follower.rounds[previous.use], part)
        views.together(part)
        return
    opened = follower.opened.pop(issued.warp.index, None)
    index = uniform(issued.sources[0], issued.lanes, "the barrier's number") & 0xFFFF_FFFF
    if isinstance(results, BarrierWait):
        use = results.use
    else:
        found = opened if opened is not None else follower.cta.barriers.rounds.get(index)
        if found is None:  # this warp was all that it waited for
            views.together(part)
            return
        use = found
    _in_turn(follower, issued, index, use)
    carried = follower.rounds.setdefault(use, Carried.of(follower.count))
    views.release(carried, part)
    if issued.ins.op.endswith("arrive"):
        views.converge(part)
    elif not isinstance(results, Wait):
        views.acquire(carried, part)
        views.together(part)


def _in_turn(follower: Follower, issued: Issued, index: int, use: Round) -> None:
    """Hold an arrival at barrier `index` in the round `use` against those of the round before."""
    views = follower.views[issued.warp.index]
    # A warp has arrived when all of its lanes have.
    event = follower.events.done(views.index, views.clock, issued.ins, Access.ATOMIC, lane=UNSURE)
    for early in follower.arrivals.setdefault(index, Arrivals(use)).arrive(use, event, views):
        follower.findings.pair(ROUNDS, early, event, BARRIER, index)


def _barrier_begins(follower: Follower, issued: Issued) -> None:
    index = uniform(issued.sources[0], issued.lanes, "the barrier's number") & 0xFFFF_FFFF
    use = follower.cta.barriers.rounds.get(index)
    if use is not None:
        follower.opened[issued.warp.index] = use


# Fences


def _fence_proxy(follower: Follower, issued: Issued) -> None:
    spaces = [space for space in SPACES if any(space in mod.split("::") for mod in issued.ins.mods)]
    follower.views[issued.warp.index].fence_proxy(spaces or SPACES, issued.part)


def _fence(follower: Follower, issued: Issued) -> None:
    sc = issued.ins.op == "membar" or issued.ins.has("sc")
    follower.variables.fence(follower.views[issued.warp.index], wide=is_wide(issued.ins), sc=sc)


def _fence_init(follower: Follower, issued: Issued) -> None:
    follower.views[issued.warp.index].fence_init(issued.part)


def _before_sync(follower: Follower, issued: Issued) -> None:
    follower.views[issued.warp.index].before_thread_sync()


def _after_sync(follower: Follower, issued: Issued) -> None:
    follower.views[issued.warp.index].after_thread_sync()


# Groups and waits of one thread


def _group(name: str) -> Begin:
    def begin(follower: Follower, issued: Issued) -> None:
        getattr(follower.tokens[issued.warp.index], name).commit(issued.lanes)

    return begin


def _group_wait(name: str) -> End:
    def end(follower: Follower, issued: Issued, previous: Wait | None, results: Results | Wait) -> None:
        if isinstance(results, Wait):
            return
        groups = getattr(follower.tokens[issued.warp.index], name)
        if issued.ins.op.endswith("wait_all"):
            known = groups.wait_all(issued.lanes)
        else:
            operand = issued.ins.sources[0]
            allowed = (
                operand.bits
                if isinstance(operand, Immediate)
                else uniform(issued.sources[0], issued.lanes, "the number of groups")
            )
            known = groups.wait(issued.lanes, allowed, only_read=issued.ins.has("read"))
        views = follower.views[issued.warp.index]
        if name == "wgmma":
            views.over(known)
        else:
            views.over_for(known, issued.part)

    return end


def _wgmma(follower: Follower, issued: Issued, previous: Wait | None, results: Results | Wait) -> None:
    """Each of the four warps reads the matrices in shared memory, as far as it knows them."""
    product = follower.cta.warpgroups.state(issued.warp).open[-1]
    reads: tuple[Footprint, ...] = tuple(
        gather.footprint for gather in (product.a, product.b) if gather is not None
    )
    tokens = follower.begin(issued.warp, issued.ins, issued.lanes, reads, (), Proxy.ASYNC)
    follower.tokens[issued.warp.index].wgmma.add(issued.lanes, tokens)


# Tensor memory


def _tmem_access(follower: Follower, issued: Issued, previous: Wait | None, results: Results | Wait) -> None:
    held = follower.tokens[issued.warp.index]
    loads = issued.ins.op == "tcgen05.ld"
    token = follower.events.token()
    event = follower.events.begun(
        issued.warp.index,
        follower.views[issued.warp.index].clock,
        issued.ins,
        Access.READ if loads else Access.WRITE,
        Proxy.TENSOR,
        token,
    )
    follower.tmem.touch(cells_of(issued.warp, issued.ins, issued.lanes, issued.sources), event)
    if loads:
        held.loads |= 1 << token
        held.unused[held.loaded] = event
        held.loaded += 1
    else:
        held.stores |= 1 << token


def _wait_loads(follower: Follower, issued: Issued) -> None:
    held = follower.tokens[issued.warp.index]
    follower.views[issued.warp.index].over(held.loads)
    held.loads = 0
    held.unused.clear()


def _wait_stores(follower: Follower, issued: Issued) -> None:
    held = follower.tokens[issued.warp.index]
    follower.views[issued.warp.index].over(held.stores)
    held.stores = 0


def _allocated(follower: Follower, issued: Issued, previous: Wait | None, results: Results | Wait) -> None:
    if isinstance(results, Wait):
        return
    address = shared_address(uniform(issued.sources[0], issued.lanes, "the address"), issued.ins)
    columns = uniform(issued.sources[1], issued.lanes, "nCols")
    # Every lane executes it before what it does next: the address is there for all of them.
    warp = issued.warp.index
    event = follower.events.done(warp, follower.views[warp].clock, issued.ins, Access.WRITE, lane=UNSURE)
    starts = np.array([address], np.int64)
    follower.touch("shared", cells(starts, 4, follower.sizes["shared"]), event)
    first = int(follower.cta.shared.view(address, 4).view(np.uint32)[0])
    follower.tmem.allocated(first, columns, event)


def _freed(follower: Follower, issued: Issued) -> None:
    address = uniform(issued.sources[0], issued.lanes, "the address")
    columns = uniform(issued.sources[1], issued.lanes, "nCols")
    follower.tmem.freed(column_of(address), columns, _done(follower, issued, Access.WRITE))


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
    "fence.proxy.async::generic": _fence_proxy,
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
