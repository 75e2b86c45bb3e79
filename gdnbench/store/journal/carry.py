# SPDX-License-Identifier: Apache-2.0
"""Avoids copying and writing a state twice when it leaves one step of a layer and enters the next."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdnbench.store.journal.codec import Buffer, Carried

if TYPE_CHECKING:
    from torch import Tensor

# Below this size, comparing and referring cost as much as copying.
SMALLEST_CARRIED = 16 << 10

# memcmp runs on this thread only; torch would divide the work among all its threads and wait.
_equal = ctypes.CDLL(None).memcmp
_equal.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(slots=True)
class _Held:
    tensor: Tensor  # a copy of what the layer left
    place: Carried | None  # None: its file is full; entries refer to bytes of their own file only
    lent: int = 0  # unwritten records that have it as an input

    @property
    def address(self) -> int:
        return self.tensor.data_ptr()


class StateCarry:
    """Copies of the mutated tensors as each layer last left them, at most `limit_bytes` in total.

    These are copies because the next step may write the caller's tensor in place. A record whose input equals
    such a copy borrows it. Comparing or keeping a 512 KiB state takes 60 us each with cold caches; writing it
    again takes 150 us and twice the queue.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._held: dict[tuple[str, str], _Held] = {}

    def lend(self, layer: str, name: str, tensor: Tensor) -> Tensor | None:
        """The copy of `tensor`, if `layer` last left exactly its bytes in tensor `name`; read-only.

        Its memory does not change until `give_back`. `tensor` is contiguous and on the CPU.
        """
        held = self._held.get((layer, name))
        if held is None or held.tensor.dtype != tensor.dtype or held.tensor.shape != tensor.shape:
            return None
        if _equal(held.address, tensor.data_ptr(), tensor.nbytes):
            return None
        held.lent += 1
        return held.tensor

    def give_back(self, layer: str, name: str, buffer: Buffer) -> None:
        """End the loan of the copy in `buffer`; does nothing if it was not lent."""
        held = self._held.get((layer, name))
        if held is not None and held.lent and held.address == ctypes.addressof(buffer):
            held.lent -= 1

    def find(self, layer: str, name: str, buffer: Buffer) -> Carried | None:
        """The place of `buffer`'s bytes in the journal file, if `layer` last left exactly these in tensor
        `name`."""
        held = self._held.get((layer, name))
        if held is None or held.place is None or held.tensor.nbytes != len(buffer):
            return None
        address = ctypes.addressof(buffer)
        if held.address == address or not _equal(held.address, address, len(buffer)):
            return held.place
        return None

    def keep(self, layer: str, name: str, tensor: Tensor, place: Carried) -> None:
        """Keep a copy of the bytes that `layer` left in tensor `name`, which are written at `place`."""
        nbytes = tensor.nbytes
        if nbytes < SMALLEST_CARRIED:
            return
        held = self._held.get((layer, name))
        if held is not None:
            alike = held.tensor.dtype == tensor.dtype and held.tensor.shape == tensor.shape
            # A lent copy stays with its borrower, whose record may never give it back.
            if alike and not held.lent:
                ctypes.memmove(held.address, tensor.data_ptr(), nbytes)
                held.place = place
                return
            self._bytes -= held.tensor.nbytes
            del self._held[layer, name]
        if self._bytes + nbytes <= self._limit:
            copy = tensor.new_empty(tensor.shape)
            ctypes.memmove(copy.data_ptr(), tensor.data_ptr(), nbytes)
            self._held[layer, name] = _Held(copy, place)
            self._bytes += nbytes

    def next_file(self) -> None:
        """Forget the places: the file that they refer to is full."""
        for held in self._held.values():
            held.place = None
