"""Text of a store, made drawable."""

from __future__ import annotations

from gdnbench.printable import printable


def drawable_text(text: str, longest: int = 110) -> str:
    """`text` in characters that the font has, shortened in the middle to `longest` characters."""
    found = printable(text).encode("latin-1", "backslashreplace").decode("latin-1")
    half = (longest - 3) // 2
    return found if len(found) <= longest else f"{found[:half]}...{found[-half:]}"
