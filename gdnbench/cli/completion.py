"""What a shell completes: commands, kernels, operations, stores and their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """A completion as typer's shells format it: of a word and not of a file, with its help."""

    value: str
    help: str | None = None
    type: str = "plain"


def items(found: Sequence[tuple[str, str]], incomplete: str) -> list[Item]:
    """Words with their help, those that begin as what was typed."""
    return [Item(word, text or None) for word, text in found if word.startswith(incomplete)]
