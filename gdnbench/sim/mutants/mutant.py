"""A mutant: one change of one instruction that synchronises."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gdnbench.sim.errors import Place
from gdnbench.sim.mutants.text import Edit, edited


class Kind(StrEnum):
    """What is done to the instruction."""

    REMOVED = "removed"
    MORE = "count more"
    LESS = "count less"
    PARITY = "parity flipped"
    WEAKENED = "weakened"
    LATER = "one later"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`op` and `place` are those of the instruction at `pc`, `change` says what became of it."""

    kind: Kind
    op: str
    pc: int
    place: Place
    change: str
    edits: tuple[Edit, ...]

    def ptx(self, text: str) -> str:
        """The mutant of the module `text`, in which every other instruction is on its own line."""
        return edited(text, self.edits)
