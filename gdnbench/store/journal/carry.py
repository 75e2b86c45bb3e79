"""A state that leaves a layer's step and enters its next one is copied once and written once."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench.store.journal.codec import Buffer, Carried

# Below this a comparison and a reference cost as much as the bytes.
SMALLEST_CARRIED = 16 << 10

# On this thread alone: torch divides such work among all of its threads, and waits for the slowest.
_equal = ctypes.CDLL(None).memcmp
_equal.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(slots=True)
class _Held:
    tensor: Tensor  # as the layer left it; its memory is ours
    place: Carried | None  # None: its file is full, and entries refer to bytes of their own file only
    lent: int = 0  # records on their way whose input this is

    @property
    def address(self) -> int:
        return self.tensor.data_ptr()


class StateCarry:
    """Copies of the mutated tensors as each layer last left them, up to `limit_bytes` in all.

    A copy, not a reference to the caller's tensor: that may be a live buffer the next step writes in place. A
    record whose input is such a copy borrows it, and needs none of its own. Comparing a 512 KiB state and
    keeping one take 60 us each, out of cold caches; writing it again takes 150 us and twice the queue.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._held: dict[tuple[str, str], _Held] = {}

    def lend(self, layer: str, name: str, tensor: Tensor) -> Tensor | None:
        """The copy kept of `tensor`, if `layer` left tensor `name` with exactly its bytes; not for writing.

        Its memory stays as it is until `give_back`. `tensor` is contiguous and on the CPU.
        """
        held = self._held.get((layer, name))
        if held is None or held.tensor.dtype != tensor.dtype or held.tensor.shape != tensor.shape:
            return None
        if _equal(held.address, tensor.data_ptr(), tensor.nbytes):
            return None
        held.lent += 1
        return held.tensor

    def give_back(self, layer: str, name: str, buffer: Buffer) -> None:
        """The record that borrowed the copy in `buffer` needs it no more; nothing happens if none did."""
        held = self._held.get((layer, name))
        if held is not None and held.lent and held.address == ctypes.addressof(buffer):
            held.lent -= 1

    def find(self, layer: str, name: str, buffer: Buffer) -> Carried | None:
        """Where the bytes of `buffer` stand, if `layer` left tensor `name` with exactly them."""
        held = self._held.get((layer, name))
        if held is None or held.place is None or held.tensor.nbytes != len(buffer):
            return None
        address = ctypes.addressof(buffer)
        if held.address == address or not _equal(held.address, address, len(buffer)):
            return held.place
        return None

    def keep(self, layer: str, name: str, tensor: Tensor, place: Carried) -> None:
        """Remember the bytes that `layer` left in tensor `name`, now written at `place`."""
        nbytes = tensor.nbytes
        if nbytes < SMALLEST_CARRIED:
            return
        held = self._held.get((layer, name))
        if held is not None:
            alike = held.tensor.dtype == tensor.dtype and held.tensor.shape == tensor.shape
            # What is lent is left to its borrower, who may have been given up and never give it back.
            if alike and not held.lent:
                ctypes.memmove(held.address, tensor.data_ptr(), nbytes)
                held.place = place
                return
            self._bytes -= held.tensor.nbytes
            del self._held[layer, name]
        if self._bytes + nbytes <= self._limit:
            copy = torch.empty_like(tensor)
            ctypes.memmove(copy.data_ptr(), tensor.data_ptr(), nbytes)
            self._held[layer, name] = _Held(copy, place)
            self._bytes += nbytes

    def next_file(self) -> None:
        """The file that the places refer to is full."""
        for held in self._held.values():
            held.place = None
