# SPDX-License-Identifier: Apache-2.0
"""The access log: who read and wrote which slot in which call, with digests in place of tensors.

A row is one access: a sequence of a call reads or writes one row of a pool. `gdnbench lineage` reads such
logs, or makes the same rows of records.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum, IntFlag
from typing import Final

import numpy as np
from numpy.typing import NDArray


class AccessKind(IntEnum):
    READ = 0
    WRITE = 1
    NONE = 2  # a call without accesses, so that its step is not missing; only call, step, layer, flag APART


class AccessFlag(IntFlag):
    PADDING = 1  # of a sequence that only fills a batch
    DIGEST_UNKNOWN = 2  # the digest is not of the bytes that a reader of the slot finds, or not known at all
    DRAFT = 4  # written after a later token than the first of a decode call, which may be rejected
    WINDOW = 8  # a token's row of a window: `position` is that token's
    APART = 16  # of a call that is counted apart from others of its layer, see `Operation.counted_apart`
    RECENT = 32  # a state of the latest few tokens alone, which other prefixes may have too
    # With WINDOW, a row of several tokens: `position` is that of the query that reads it. Such rows are made
    # of records, and are in no log.
    COMPRESSED = 64
    ALL = 128  # with COMPRESSED, its query reads fewer rows than it has room for, so perhaps all in order


UNKNOWN: Final = -1
"""A request, position, slot or count that nobody claimed."""

ROW: Final = np.dtype(
    [
        ("call", "<i8"),  # number of the call in its process
        ("step", "<i8"),  # which call of its layer, from 0; calls with APART are counted by themselves
        ("layer", "<i4"),  # index of its name
        ("chain", "<i2"),  # index of its name
        ("kind", "i1"),  # an AccessKind
        ("flags", "u1"),  # AccessFlag
        ("sequence", "<i4"),  # in the call
        ("request", "<i4"),  # index of its name, or UNKNOWN
        ("position", "<i8"),  # read: of the sequence's first token; write: after the token; or UNKNOWN
        ("slot", "<i8"),  # row of the pool, or UNKNOWN
        ("accepted", "<i4"),  # num_accepted of the sequence, or UNKNOWN
        ("tokens", "<i4"),  # tokens of the sequence in this call
        ("prefix", "<u8"),  # hash of the request's tokens before `position`, or 0
        ("digest", "<u8", (2,)),  # `gdnbench.digests.row_digests`
    ]
)
"""One access. A call's reads find the pool as it was before the call, its writes as it is after it."""


def kept_writes(reads: NDArray[np.void], kept: Collection[int]) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Writes of the sequences `kept` of a call whose reads are given: it leaves the pool as it is, keeps the
    state after each token elsewhere, and the engine puts one of them into the slot later. Their digests are
    unknown. Also the number of each write's token in its sequence, int64 [n]."""
    chosen = reads[np.isin(reads["sequence"], list(kept)) & (reads["tokens"] > 0)]
    tokens = chosen["tokens"].astype(np.int64)
    found = np.repeat(chosen, tokens)
    token = np.arange(len(found)) - np.repeat(np.cumsum(tokens) - tokens, tokens) + 1
    found["kind"], found["prefix"], found["digest"] = AccessKind.WRITE, 0, 0
    found["position"] = np.where(found["position"] < 0, UNKNOWN, found["position"] + token)
    found["flags"] |= np.uint8(AccessFlag.DIGEST_UNKNOWN)
    found["flags"][token > 1] |= np.uint8(AccessFlag.DRAFT)
    return found, token - 1


def know_digests(writes: NDArray[np.void]) -> None:
    """Flag the digests of `writes` as known."""
    writes["flags"] &= np.uint8(0xFF & ~AccessFlag.DIGEST_UNKNOWN)
