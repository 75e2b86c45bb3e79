# SPDX-License-Identifier: Apache-2.0
"""Instructions in which lanes meet: shuffles, votes, match, redux, elect, also by part of a warp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.sim.silicon.elementwise import Operation, asm, elementwise
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.patterns import random_u32, random_words

COUNT = 1024  # 32 warps


def shuffle(mode: str, lane: str, clamp: str, mask: str = "-1") -> Operation:
    label = f"shfl.sync.{mode}.b32 {lane}, {clamp}, {mask}"
    text = f"shfl.sync.{mode}.b32 $d|$p, $a, {lane}, {clamp}, {mask};\nselp.b32 $d1, 1, 0, $p;"
    return asm(label, text, "b32", "b32")


def shuffles() -> MicroKernel:
    """Constant and per-lane lane numbers (0..63) and clamps, segments of 8, 16 and 32 lanes.

    A source lane may lie outside the segment; every lane is active, so that each result is defined.
    """
    a, lane = random_u32(101, COUNT), random_u32(102, COUNT) & np.uint32(63)
    clamp = random_u32(103, COUNT) & np.uint32(0x1F1F)
    operations = []
    for mode, full in (("up", 0), ("down", 31), ("bfly", 31), ("idx", 31)):
        operations += [shuffle(mode, str(n), str(full)) for n in (0, 1, 2, 5, 16, 31, 33)]
        segments = [0x1800 | full, 0x1000 | full, 0x1807 & (0x1F00 | full)]
        operations += [shuffle(mode, "3", str(c)) for c in segments]
        operations += [shuffle(mode, "$b", str(full)), shuffle(mode, "$b", "$c"), shuffle(mode, "4", "$c")]
    return elementwise("warp_shuffles", (a, lane, clamp), operations)


def votes() -> MicroKernel:
    """Predicates that hold for none, few, most and all lanes; redux and match of few and many values."""
    words = random_words(104, COUNT)
    warp = np.arange(COUNT) // 32
    share = np.array([0, 1, 50, 99, 100, 50, 3, 97])[warp % 8]
    flags = ((words >> np.uint64(33)) % np.uint64(100) < share.astype(np.uint64)).astype(np.uint32)
    values = random_u32(105, COUNT)
    few = (random_u32(106, COUNT) % (np.uint32(1) + (warp % 7).astype(np.uint32))).astype(np.uint32)
    test = "setp.ne.u32 $p, $a, 0;\n"
    operations = [asm("vote.sync.ballot.b32", test + "vote.sync.ballot.b32 $d, $p, -1;", "b32")]
    for mode in ("all", "any", "uni"):
        text = f"{test}vote.sync.{mode}.pred $q, $p, -1;\nselp.b32 $d, 1, 0, $q;"
        operations.append(asm(f"vote.sync.{mode}.pred", text, "b32"))
    operations.append(asm("vote.sync.ballot.b32 !p", test + "vote.sync.ballot.b32 $d, !$p, -1;", "b32"))
    operations.append(asm("match.any.sync.b32", "match.any.sync.b32 $d, $c, -1;", "b32"))
    together = "match.all.sync.b32 $d|$p, $c, -1;\nselp.b32 $d1, 1, 0, $p;"
    operations.append(asm("match.all.sync.b32", together, "b32", "b32"))
    wide = "mov.b64 $d, {$c, $a};\nmatch.any.sync.b64 $d1, $d, -1;"
    operations.append(asm("match.any.sync.b64", wide, "b64", "b32"))
    for kind in ("s32", "u32"):
        operations += [
            asm(f"redux.sync.{o}.{kind}", f"redux.sync.{o}.{kind} $d, $b, -1;", "b32")
            for o in ("add", "min", "max")
        ]
    operations += [
        asm(f"redux.sync.{o}.b32", f"redux.sync.{o}.b32 $d, $b, -1;", "b32") for o in ("and", "or", "xor")
    ]
    elect = "elect.sync $d|$p, -1;\nselp.b32 $d1, 1, 0, $p;"
    operations.append(asm("elect.sync", elect, "b32", "b32"))
    return elementwise("warp_votes", (flags, values, few), operations)


def partial() -> MicroKernel:
    """The same by the lanes of an `if` alone: those of an odd flag, with the mask that they make up."""
    flags, values = random_u32(107, COUNT) & np.uint32(1), random_u32(108, COUNT)
    few = values & np.uint32(3)
    collectives = {
        "shfl.sync.idx.b32 first": "shfl.sync.idx.b32 $d, $b, $d2, 31, $d1;",
        "vote.sync.ballot.b32": "setp.gt.s32 $q, $b, 0;\nvote.sync.ballot.b32 $d, $q, $d1;",
        "match.any.sync.b32": "match.any.sync.b32 $d, $c, $d1;",
        "redux.sync.add.s32": "redux.sync.add.s32 $d, $b, $d1;",
        "redux.sync.max.u32": "redux.sync.max.u32 $d, $b, $d1;",
        "elect.sync": "elect.sync _|$q, $d1;\nselp.b32 $d, 1, 0, $q;",
        "activemask.b32": "bar.warp.sync $d1;\nactivemask.b32 $d;",
    }
    operations = []
    for label, text in collectives.items():
        # $d1: the mask of the odd lanes; $d2: its lowest lane.
        before = "and.b32 $d2, $a, 1;\nsetp.ne.u32 $p, $d2, 0;\nvote.sync.ballot.b32 $d1, $p, -1;\n"
        before += "brev.b32 $d2, $d1;\nclz.b32 $d2, $d2;\nmov.b32 $d, 0;\n@!$p bra DONE$k;\n"
        after = "\nDONE$k:\nbar.warp.sync -1;"
        # A label and what follows it stand on lines of their own; the wrapper stores after the join.
        operations.append(asm(f"{label} by the odd lanes", before + text + after, "b32", "b32", "b32"))
    return elementwise("warp_partial", (flags, values, few), operations)


KERNELS: tuple[Callable[[], MicroKernel], ...] = (shuffles, votes, partial)
