# SPDX-License-Identifier: Apache-2.0
"""The names that there are, for the message about one that there is not."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

ALIKE = 0.6
"""Part of two names' letters that both have in the same order, from which one is taken for the other:
difflib's own default."""


def nearest_first(name: str, known: Iterable[str]) -> str:
    """The `known` names separated by commas, in their order but for the one nearest to `name`, which is
    first: one that begins `name` or that `name` begins, else the one most like it, if any is `ALIKE`."""
    names = list(known)
    likeness = {other: _likeness(name.lower(), other.lower()) for other in names}
    nearest = max(names, key=likeness.__getitem__, default="")
    if nearest and likeness[nearest] >= ALIKE:
        names.remove(nearest)
        names.insert(0, nearest)
    return ", ".join(names)


def _likeness(name: str, other: str) -> float:
    """0 for nothing in common, 1 for the same; more than that where one begins the other."""
    begins = bool(name and other) and (name.startswith(other) or other.startswith(name))
    return begins + SequenceMatcher(None, name, other).ratio()
