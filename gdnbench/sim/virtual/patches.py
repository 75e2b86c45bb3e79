# SPDX-License-Identifier: Apache-2.0
"""Replaces attributes of the program's modules and puts them back."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class Patches:
    """Attributes that were replaced, to be restored in reverse order."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, object]] = []

    def replace(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute of a module or class and remember what it was."""
        own = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        self._before.append((owner, name, own))

    def replace_if_there(self, owner: Any, name: str, value: object) -> None:
        """`replace`, unless this release of the library has no such attribute."""
        if hasattr(owner, name):
            self.replace(owner, name, value)

    def restore(self) -> None:
        """Undo all replacements."""
        while self._before:
            owner, name, own = self._before.pop()
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
