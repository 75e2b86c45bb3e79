# SPDX-License-Identifier: Apache-2.0
"""Quantities as people write them."""

from __future__ import annotations


def human_bytes(count: int) -> str:
    """1536 -> "1.5 KiB"."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def counted(count: int, noun: str) -> str:
    """1, "record" -> "1 record"; 2, "process" -> "2 processes"."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{'' if count == 1 else ending}"


def seconds_text(seconds: float) -> str:
    """Four digits: `142.1 us`."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds / 1e-6:.4g} us"
