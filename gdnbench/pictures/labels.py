"""Text of a store as a picture can have it."""

from __future__ import annotations

from gdnbench.printable import printable


def clean(text: str, longest: int = 110) -> str:
    """Text of a store as the font can draw it, cut in its middle where it is too long for a line."""
    found = printable(text).encode("latin-1", "backslashreplace").decode("latin-1")
    half = (longest - 3) // 2
    return found if len(found) <= longest else f"{found[:half]}...{found[-half:]}"
