# SPDX-License-Identifier: Apache-2.0
"""States after whole blocks of tokens, kept in slots of the pool, the least recently used replaced."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tests.lineage.serving.states import Request, States

Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    slot: int
    position: int
    cache: dict[int, tuple[Tensor, Tensor]]  # keys and values of attention


class PrefixCache:
    def __init__(self, states: States, slots: list[int]) -> None:
        self.states = states
        self.free = slots
        self.entries: dict[Key, Entry] = {}  # the least recently used first

    def __contains__(self, key: Key) -> bool:
        return key in self.entries

    def store(self, key: Key, request: Request, slot: int) -> None:
        """Copies the state in `slot`, which is the request's after `key`."""
        if key in self.entries:
            return
        if not self.free:
            oldest = next(iter(self.entries))
            self.free.append(self.entries.pop(oldest).slot)
        own = self.free.pop()
        self.states.copy(slot, own)
        length = len(key)
        cache = {
            layer: (k[:, :length].clone(), v[:, :length].clone()) for layer, (k, v) in request.cache.items()
        }
        self.entries[key] = Entry(own, length, cache)

    def load(self, key: Key, request: Request) -> None:
        """Copies the entry to the request's slot."""
        entry = self.entries.pop(key)
        self.entries[key] = entry
        self.states.copy(entry.slot, request.slot)
        request.cache = {layer: (k.clone(), v.clone()) for layer, (k, v) in entry.cache.items()}
        request.position = entry.position
        request.fresh = False
