"""A state that leaves a layer's step and enters its next one is written to the journal once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gdnbench.store.journal_codec import Buffer, Carried

# Below this a comparison and a reference cost as much as the bytes.
SMALLEST_CARRIED = 16 << 10

Words = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(slots=True)
class _Held:
    words: Words
    place: Carried | None  # None: its file is full, and entries refer to bytes of their own file only


class StateCarry:
    """Copies of the mutated tensors as each layer last left them, up to `limit_bytes` in all.

    A copy, not a reference to the caller's tensor: that may be a live buffer the next step writes in place.
    Keeping one and comparing take 5 us each for a 256 KiB state; writing it again takes 130 us and twice the
    queue.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._held: dict[tuple[str, str], _Held] = {}

    def find(self, layer: str, name: str, buffer: Buffer) -> Carried | None:
        """Where the bytes of `buffer` stand, if `layer` left tensor `name` with exactly them."""
        held = self._held.get((layer, name))
        if held is None or held.place is None or held.words.nbytes != len(buffer):
            return None
        return held.place if np.array_equal(held.words, _words(buffer)) else None

    def keep(self, layer: str, name: str, buffer: Buffer, place: Carried) -> None:
        """Remember the bytes that `layer` left in tensor `name`, now written at `place`."""
        nbytes = len(buffer)
        if nbytes < SMALLEST_CARRIED or nbytes % 8:
            return
        held = self._held.get((layer, name))
        if held is not None and held.words.nbytes == nbytes:
            np.copyto(held.words, _words(buffer))
            held.place = place
            return
        if held is not None:
            self._bytes -= held.words.nbytes
            del self._held[layer, name]
        if self._bytes + nbytes <= self._limit:
            self._held[layer, name] = _Held(_words(buffer).copy(), place)
            self._bytes += nbytes

    def next_file(self) -> None:
        """The file that the places refer to is full."""
        for held in self._held.values():
            held.place = None


def _words(buffer: Buffer) -> Words:
    return np.frombuffer(memoryview(buffer), np.uint64)
