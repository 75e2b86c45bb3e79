# SPDX-License-Identifier: Apache-2.0
"""Opening stores. What reads them is imported when one is opened, not to explain or complete a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdnbench.store.address import Address
    from gdnbench.store.reader import Store


def open_store(place: Address) -> Store:
    """The store at a path or a URL, as `gdnbench.store.recover.open_store` opens it; StoreError if there is
    none."""
    from gdnbench.store import recover

    return recover.open_store(place)
