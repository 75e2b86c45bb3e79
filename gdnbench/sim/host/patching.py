# SPDX-License-Identifier: Apache-2.0
"""Replaces attributes of classes and modules for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def patched(owner: Any, **attributes: Any) -> Iterator[None]:
    """Inside this block `owner`, a class or a module, has these attributes. Blocks must end in the reverse
    order of their beginnings, as `with` statements do."""
    before = {name: vars(owner).get(name, _MISSING) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
