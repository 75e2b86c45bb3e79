# SPDX-License-Identifier: Apache-2.0
"""How compiled code returns: what a block returns besides the next block, and the kinds of faults."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """A block's return values besides the next block's index."""

    SPLIT = -1  # lanes branched to different blocks, which are in the state
    GONE = -2  # the active lanes, or those marked, have exited
    SERVICE = -3  # Python executes the instruction
    FAULT = -4
    JOIN = -5  # a collective waits for lanes at other blocks
    PART = -6  # lanes whose guard is false skipped a collective; nothing was executed
    FULL = -7  # the log may be too short for the block's accesses; nothing was executed


class FaultCode(IntEnum):
    """The kind of a fault; Python repeats the access for the message."""

    GLOBAL = 1
    SHARED = 2
    LOCAL = 3
    PARAM = 4
    TRAP = 5
    COLLECTIVE = 6
    MATRIX = 7  # a matrix row outside of shared memory
    BRANCH = 8  # an index beyond a table of branch targets
    CLUSTER = 9  # an access by shared::cluster


END = 0x7FFFFFFF  # the block of an exited lane; larger than any index
