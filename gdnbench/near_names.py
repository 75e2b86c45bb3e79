"""The names that there are, for the message about one that there is not."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher


def nearest_first(name: str, known: Iterable[str]) -> str:
    """The `known` names separated by commas, in their order but for the one nearest to `name`, which is first:
    one that begins `name` or that `name` begins, before the one that has most letters in common with it."""
    names = list(known)
    if names:
        nearest = max(names, key=lambda other: _likeness(name.lower(), other.lower()))
        names.remove(nearest)
        names.insert(0, nearest)
    return ", ".join(names)


def _likeness(name: str, other: str) -> tuple[bool, float]:
    begins = bool(name and other) and (name.startswith(other) or other.startswith(name))
    return begins, SequenceMatcher(None, name, other).ratio()
