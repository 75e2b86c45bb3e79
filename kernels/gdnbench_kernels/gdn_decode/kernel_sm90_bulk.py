"""`StateUpdate` (kernel_sm90.py) with the state's rows in shared memory: one cp.async.bulk per warp and pass
loads them. `BulkLoads` stores the new rows from registers, `BulkUpdate` by another cp.async.bulk.

Lanes compute the same elements in the same order as `StateUpdate`. A lane writes the new elements over those
that it read; no other lane accesses them. A warp waits for its own copies and for no other warp. Each pass
has its own buffer, so the next pass is loaded before the current one is computed.

    mbarrier       arrivals and bytes                            guarantees
    state_barrier  1 (lane 0) + bytes of the warp's rows a pass  the rows have landed before they are read

A bulk store starts after all lanes have written their words (warp barrier) and made them visible to the async
proxy (proxy fence). It has read its source before a lane writes there again and before the CTA exits. A store
to a slot that an earlier token wrote starts after the earlier store has completed.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_decode import ptx
from gdnbench_kernels.gdn_decode.kernel_sm90 import CHUNK, StateUpdate
from gdnbench_kernels.gdn_decode.kernel_values import Gates, WorkTile


class BulkLoads(StateUpdate):
    """Loads the state by cp.async.bulk, stores it from registers."""

    loads_next_pass_early = True

    @property
    def warp_bytes(self) -> int:
        """Bytes of a warp's rows, which are adjacent in a slot."""
        return self.plan.warp_rows * self.row_bytes

    def order_after_gates(self, read: Any, given: Gates) -> Any:
        """The slot itself: a bulk copy uses no scoreboard, so the gates wait for their own inputs alone."""
        return read

    @cute.jit
    def load_state(self, work: WorkTile, read: cutlass.Int32, state: cute.Tensor) -> None:
        """Start the warp's bulk load of a pass, unless the sequence is padding."""
        if work.lane == 0 and read >= 0:
            cute.arch.mbarrier_arrive_and_expect_tx(work.state_barrier, self.warp_bytes)
            source = self.row_address(work, read, work.first_row, state)
            ptx.bulk_load(work.tile, source, self.warp_bytes, work.state_barrier.toint(), self.plan.load)

    def unpack_state(self, work: WorkTile, loaded: Any) -> list[list[Any]]:
        cute.arch.mbarrier_wait(work.state_barrier, 0)
        at = self.lane_address(work)
        return self.group_by_row(
            [ptx.load_shared(at, offset, 4, self.word_type) for _, offset in self.chunk_offsets()]
        )

    def lane_address(self, work: WorkTile) -> Any:
        """Shared-memory address of this thread's first chunk."""
        return work.tile + self.group_row(work.lane) * self.row_bytes + work.part * CHUNK


class BulkUpdate(BulkLoads):
    """Loads and stores the state by cp.async.bulk."""

    @cute.jit
    def store_state(
        self,
        work: WorkTile,
        slot: cutlass.Int32,
        state: cute.Tensor,
        rows: list[list[Any]],
        before: list[Any],
    ) -> None:
        if cutlass.const_expr(len(before) > 0):
            if work.lane == 0:
                ptx.bulk_wait_read()
                # Bulk stores complete in any order. Where two tokens have one slot, the later must win.
                if self.is_one_of(slot, before):
                    ptx.bulk_wait()
            cute.arch.sync_warp()
        at = self.lane_address(work)
        for offset, words in self.stored_chunks(rows):
            ptx.store_shared(at, offset, words)
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
        if work.lane == 0:
            target = self.row_address(work, slot, work.first_row, state)
            ptx.bulk_store(target, work.tile, self.warp_bytes, self.plan.store)

    def is_one_of(self, slot: Any, others: list[Any]) -> Any:
        """Whether `slot` equals one of `others`."""
        found = slot == others[0]
        for other in others[1:]:
            found = found | (slot == other)
        return found

    @cute.jit
    def wait_for_stores(self, work: WorkTile) -> None:
        if work.lane == 0:
            ptx.bulk_wait_read()
