"""`StateUpdate` whose rows come through shared memory: a bulk copy a warp and a pass brings them. They leave
from registers in `BulkLoads`, by another bulk copy in `BulkUpdate`.

Lanes work on the same elements in the same order, and in place: what a lane reads from shared memory it
alone writes. A warp waits for its own copies, and for no other warp. A pass has memory of its own, and is
asked for before the one in front of it is worked on.

    mbarrier  told by                         says
    arrived   the warp's copy in of a pass    its rows are there

Before a copy out starts, all lanes have stored (a warp barrier) and what they stored is seen by the copy
engine (a proxy fence). Before a lane stores again, and before the CTA ends, the copy out has read its source;
before a copy out to a slot that an earlier token had, the earlier copy has landed.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_decode import ptx
from gdnbench_kernels.gdn_decode.kernel_sm90 import CHUNK, Gates, Item, StateUpdate


class BulkLoads(StateUpdate):
    """Rows come by bulk copies."""

    asks_ahead = True

    @property
    def warp_bytes(self) -> int:
        """Of a warp's rows, which are next to one another in a slot too."""
        return self.plan.warp_rows * self.row_bytes

    def ahead(self, read: Any, given: Gates) -> Any:
        """The slot at once: a copy is no load, and gates wait for their own alone."""
        return read

    @cute.jit
    def ask(self, item: Item, read: cutlass.Int32, state: cute.Tensor) -> None:
        """Start the warp's copy in of a pass, unless the sequence is padding."""
        if item.lane == 0 and read >= 0:
            cute.arch.mbarrier_arrive_and_expect_tx(item.arrived, self.warp_bytes)
            source = self.place(item, read, item.first_row, state)
            ptx.copy_in(item.tile, source, self.warp_bytes, item.arrived.toint(), self.plan.load)

    def take(self, item: Item, asked: Any) -> list[list[Any]]:
        cute.arch.mbarrier_wait(item.arrived, 0)
        at = self.own(item)
        return self.by_row([ptx.load_shared(at, offset, 4, self.kind) for _, offset in self.chunk_places()])

    def own(self, item: Item) -> Any:
        """This thread's first chunk in shared memory."""
        return item.tile + self.group_row(item.lane) * self.row_bytes + item.part * CHUNK


class BulkUpdate(BulkLoads):
    """Rows come and leave by bulk copies."""

    @cute.jit
    def put(
        self, item: Item, slot: cutlass.Int32, state: cute.Tensor, rows: list[list[Any]], before: list[Any]
    ) -> None:
        if cutlass.const_expr(len(before) > 0):
            if item.lane == 0:
                ptx.wait_read()
                # Copies out land in any order, and of two tokens with one slot the later is to last.
                if self.among(slot, before):
                    ptx.wait_written()
            cute.arch.sync_warp()
        at = self.own(item)
        for offset, words in self.chunks_of(rows):
            ptx.store_shared(at, offset, words)
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
        if item.lane == 0:
            target = self.place(item, slot, item.first_row, state)
            ptx.copy_out(target, item.tile, self.warp_bytes, self.plan.store)

    def among(self, slot: Any, others: list[Any]) -> Any:
        """Whether a slot is one of the others."""
        found = slot == others[0]
        for other in others[1:]:
            found = found | (slot == other)
        return found

    @cute.jit
    def finish(self, item: Item) -> None:
        if item.lane == 0:
            ptx.wait_read()
