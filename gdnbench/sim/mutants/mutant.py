# SPDX-License-Identifier: Apache-2.0
"""A mutant: one change of one synchronising instruction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gdnbench.sim.errors import Place
from gdnbench.sim.mutants.text import Edit, apply_edits


class Kind(StrEnum):
    """The kind of change."""

    REMOVED = "removed"
    MORE = "count more"
    LESS = "count less"
    PARITY = "parity flipped"
    WEAKENED = "weakened"
    LATER = "one later"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`op` and `place` are those of the changed instruction, at `pc`; `change` describes the change."""

    kind: Kind
    op: str
    pc: int
    place: Place
    change: str
    edits: tuple[Edit, ...]

    def ptx(self, text: str) -> str:
        """The PTX of the mutant of the module `text`. Every other instruction keeps its line."""
        return apply_edits(text, self.edits)
