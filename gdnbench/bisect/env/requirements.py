# SPDX-License-Identifier: Apache-2.0
"""Requirements that pin versions, as pip writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from gdnbench.errors import BadInputError

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(\[[A-Za-z0-9._,-]*\])?==([A-Za-z0-9.!+_-]+)")


@dataclass(frozen=True, slots=True)
class Pin:
    """A package at a version. `name` is normalised as pip compares names."""

    name: str
    version: str
    extras: str = ""

    def __str__(self) -> str:
        return f"{self.name}{self.extras}=={self.version}"


Pins = Mapping[str, Pin]


def plain_name(name: str) -> str:
    """The normalised form of a package name."""
    return re.sub("[-_.]+", "-", name).lower()


def pins(text: str, option: str) -> dict[str, Pin]:
    """ "a==1 b[x]==2" by name. BadInputError names `option`."""
    found: dict[str, Pin] = {}
    for word in text.split():
        match = _PIN.fullmatch(word)
        if match is None:
            raise BadInputError(
                f"{option} {word!r} pins no version; write them like 'torch==2.11.0 other==1'"
            )
        name = plain_name(match[1])
        if name in found:
            raise BadInputError(f"{option} names {name} twice")
        found[name] = Pin(name, str(_version(match[3], option)), match[2] or "")
    return found


def _version(text: str, option: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise BadInputError(f"{option}: {text!r} is no version") from None


def same_version(one: str | None, other: str | None) -> bool:
    """Whether two versions are equal, as 1 and 1.0 are."""
    return one == other if one is None or other is None else Version(one) == Version(other)


def versions_between(good: str, bad: str, known: list[str]) -> list[str]:
    """The versions from `good` to `bad`, both included, in that direction. Pre-releases between them are left
    out."""
    ends = Version(good), Version(bad)
    others = {Version(one) for one in known}
    low, high = min(ends), max(ends)
    line = sorted({one for one in others if low < one < high and not one.is_prerelease} | set(ends))
    return [str(one) for one in (line if ends[0] <= ends[1] else reversed(line))]
