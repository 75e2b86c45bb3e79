"""Text from elsewhere, a store or a repository, as it may reach a terminal."""

from __future__ import annotations


def printable(text: object) -> str:
    """One line that does nothing to a terminal: what is not printable, line ends and directions of writing
    among it, as Python writes it between quotes."""
    found = str(text)
    if found.isprintable():
        return found
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in found)


def printable_lines(text: object) -> str:
    """Several lines, each as `printable` makes it; they end where `text` has a line feed and nowhere else."""
    return "\n".join(map(printable, str(text).split("\n")))
