# SPDX-License-Identifier: Apache-2.0
"""The checker: a happens-before race detector with vector clocks, for the PTX of one kernel launch.

It reports two accesses to the same bytes if at least one writes and no synchronisation orders them, whichever
came first in this run. The algorithm is that of FastTrack (Flanagan and Freund, "FastTrack: efficient and
precise dynamic race detection", PLDI 2009) and of ThreadSanitizer's runtime v2 and v3 (the paper, Serebryany
and Iskhodzhanov, WBIA 2009, describes the older v1), for a GPU's memory model:

    vector_clocks.py    the vector clocks of each warp, and how a release and an acquire join them
    remote_clocks.py    the same for other CTAs and for earlier launches
    async_operations.py an asynchronous operation from its issue to the signal of its mbarriers
    async_tokens.py     the asynchronous operations in flight, and which wait completes them
    events.py           accesses, each stamped with its epoch
    load_store.py, lanes.py    the cells and the lanes of a load, store or atomic
    shadow.py           shadow memory: for each cell the last write and the reads since
    lane_shadow.py      the same for shared memory, with the lane that made each access
    launch_memory.py    the same for global memory, which all CTAs share; paged_cells.py is its sparse array
    tensor_memory.py    the same for tensor memory
    synchronisation.py  which machine instruction is which edge: barriers, mbarriers, fences, waits
    mbarriers.py, named_barriers.py    the clocks of an mbarrier's phases; the arrivals of a barrier's rounds
    sync_variables.py   release and acquire through words of shared and global memory
    happens_before.py   the rule: is this access ordered after that one, and what is missing if not
    cross_cta.py        the same rule between CTAs
    cluster_uses.py     uses of another CTA's shared memory before its start or after its exit
    earlier_launches.py the launches in front that may still run, and what orders accesses after theirs
    stored_values.py    the bits that stores left, for stores of equal bits by two warps
    cta_detector.py     the detector of one CTA, which drives all of the above; cta_state.py is its interface
    cta_exit.py         what a CTA leaves in flight or unfinished
    findings.py, evidence.py, accept.py    findings, as users see them, and as a file accepts them
    grid.py             the checker of a launch

Where it follows FastTrack and ThreadSanitizer: an access is stamped with an epoch, the warp and the warp's
own component of its vector clock. A release joins the warp's vector clock into the clock of a synchronisation
object and raises the warp's own component. An acquire joins the object's clock into the warp's vector clock.
A cell of shadow memory has the epoch of the last write and the epochs of the reads since. A read races with
the last write if the reading warp's vector clock does not contain the write's epoch. A write is checked in
the same way against the last write and against every read since.

Where it differs:
- An actor (in FastTrack a thread) is a warp, or a lane if lanes of a warp synchronise separately. An
  asynchronous operation is an actor too.
- Order depends on the proxy (generic, async, tensor): there is a vector clock for each kind of order.
- Shadow memory keeps all reads since the last write except those that a later read supersedes; in global
  memory it keeps at most 16 accesses by other CTAs. FastTrack keeps one epoch while reads are ordered, else
  a vector clock. ThreadSanitizer keeps at most four accesses a cell and so may forget one.
- An event keeps its instruction, so a finding always names both instructions.
- The simulator reports every access and every synchronisation, in the order of this run. Nothing is sampled.
"""
