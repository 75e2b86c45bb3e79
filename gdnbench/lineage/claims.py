# SPDX-License-Identifier: Apache-2.0
"""What the engine claims about the sequences of a recorded call: `dispatch["lineage"]` of its record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gdnbench.errors import StoreError
from gdnbench.store.access_log import UNKNOWN

LINEAGE: Final = "lineage"  # key of `dispatch`
_HASH: Final = re.compile("[0-9a-f]{16}")
_DIGEST: Final = re.compile("[0-9a-f]{32}")
_POSITIONS: Final = 1 << 32
_SLOTS: Final = 1 << 48


@dataclass(frozen=True, slots=True)
class StoredClaims:
    """By sequence; past the end of a list nothing is known.

    `requests`: names, or None. `positions`: of the sequence's first token in its request. `prefixes`: hashes
    of the request's tokens before that one, 0 if unknown. `slots`: of gathered states. `kept`: sequences
    whose states the call keeps outside the pool; `kept_digests`: for each of those the digests of its states
    by token, if they are recorded. `elsewhere`: the engine writes states in other ways too.
    """

    requests: tuple[str | None, ...] = ()
    positions: tuple[int, ...] = ()
    padding: frozenset[int] = frozenset()
    prefixes: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    kept: frozenset[int] = frozenset()
    elsewhere: bool = False
    kept_digests: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)


def claims_of(dispatch: Mapping[str, Any], where: str) -> StoredClaims:
    """The claims of a record; StoreError, which begins with `where`, if they have another form."""
    found = dispatch.get(LINEAGE)
    if found is None:
        return StoredClaims()
    if not isinstance(found, Mapping):
        raise StoreError(f"{where}: lineage is not an object")
    requests = _items(found, "requests", where)
    prefixes = _items(found, "prefixes", where)
    if not all(one is None or type(one) in (str, int) for one in requests):
        raise StoreError(f"{where}: lineage: requests are not texts, numbers or null")
    if not all(one is None or (isinstance(one, str) and _HASH.fullmatch(one)) for one in prefixes):
        raise StoreError(f"{where}: lineage: prefixes are not 16 hexadecimal digits or null")
    kept = _numbers(found, "kept", where, 1 << 31)
    return StoredClaims(
        tuple(None if one is None else str(one) for one in requests),
        _numbers(found, "positions", where, _POSITIONS),
        frozenset(_numbers(found, "padding", where, 1 << 31)),
        tuple(0 if one is None else int(one, 16) for one in prefixes),
        _numbers(found, "slots", where, _SLOTS),
        frozenset(kept),
        found.get("elsewhere", False) is not False,
        _kept_digests(found, kept, where),
    )


def _kept_digests(
    found: Mapping[str, Any], kept: tuple[int, ...], where: str
) -> dict[int, tuple[tuple[int, int], ...]]:
    given = _items(found, "kept_digests", where)
    if not given:
        return {}
    right = len(given) == len(kept) and all(
        isinstance(of_sequence, list | tuple)
        and all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in of_sequence)
        for of_sequence in given
    )
    if not right:
        raise StoreError(
            f"{where}: lineage: kept_digests are not lists of 32 hexadecimal digits, one for each of kept"
        )
    return {
        number: tuple((int(one[:16], 16), int(one[16:], 16)) for one in of_sequence)
        for number, of_sequence in zip(kept, given, strict=True)
    }


def _items(found: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = found.get(name)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise StoreError(f"{where}: lineage: {name} is not a list")
    return list(value)


def _numbers(found: Mapping[str, Any], name: str, where: str, stop: int) -> tuple[int, ...]:
    """The numbers, UNKNOWN for null."""
    values = [UNKNOWN if one is None else one for one in _items(found, name, where)]
    for value in values:
        if type(value) is not int or not UNKNOWN <= value < stop:
            shown = str(value)[:40]
            raise StoreError(f"{where}: lineage: {name} has {shown!r}, which is no number below {stop}")
    return tuple(values)
