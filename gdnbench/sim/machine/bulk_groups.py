# SPDX-License-Identifier: Apache-2.0
"""Bulk async-groups: the bulk stores and reductions that each thread has grouped and not yet waited for.

PTX ISA, "cp.async.bulk.commit_group", "cp.async.bulk.wait_group": groups belong to the executing thread. A
wait for N leaves up to N of the most recent groups in flight; with `.read` it only waits until the others
have read their sources.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gdnbench.sim.machine.async_queue import AsyncOperation, AsyncQueue
from gdnbench.sim.machine.engine_interface import LANES


@dataclass(slots=True)
class _Thread:
    """The open group and the committed groups, oldest first."""

    open: list[AsyncOperation] = field(default_factory=list)
    groups: deque[list[AsyncOperation]] = field(default_factory=deque)

    def prune(self) -> None:
        """Remove finished groups at the old end: no later wait counts them."""
        groups = self.groups
        while groups:
            for operation in groups[0]:
                if not operation.landed:
                    return
            groups.popleft()


class BulkGroups:
    """The bulk async-groups of one warp's threads."""

    def __init__(self) -> None:
        self._threads = tuple(_Thread() for _ in range(LANES))

    def add(self, lanes: list[int], operation: AsyncOperation) -> None:
        """Add `operation` to the open group of these lanes."""
        for lane in lanes:
            self._threads[lane].open.append(operation)

    def commit(self, lanes: list[int]) -> None:
        """Close the open group of each lane, even an empty one."""
        for lane in lanes:
            thread = self._threads[lane]
            thread.groups.append(thread.open)
            thread.open = []
            thread.prune()

    def wait(self, lanes: list[int], allowed: int, queue: AsyncQueue, *, only_read: bool) -> None:
        """Complete all but the `allowed` most recent groups of each lane."""
        for lane in lanes:
            thread = self._threads[lane]
            for index in range(len(thread.groups) - allowed):
                for operation in thread.groups[index]:
                    if only_read:
                        queue.finish_read(operation)
                    else:
                        queue.complete(operation)
            thread.prune()
