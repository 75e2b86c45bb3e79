# SPDX-License-Identifier: Apache-2.0
"""The code of one kernel while it is parsed, with the functions that it calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx.declarations import Space
from gdnbench.sim.ptx.ir import Variable
from gdnbench.sim.ptx.registers import RegisterList
from gdnbench.sim.ptx.statements import Statement

# A limit on the memory that a text can make the parser allocate: instructions of a kernel with the functions
# that it calls, whose bodies each call copies.
MAX_INLINED = 1 << 17


@dataclass(slots=True)
class KernelCode:
    """`inlining` has the names of the functions that the current position is in, `loc` the last `.loc`: a
    file's number and a line in it."""

    registers: RegisterList
    statements: list[Statement] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    local: Space = field(default_factory=lambda: Space("local"))
    loc: tuple[int, int] | None = None
    inlining: list[str] = field(default_factory=list)

    @property
    def pc(self) -> int:
        """The pc of the next statement."""
        return len(self.statements)

    def append(self, statement: Statement) -> None:
        """Raises UnsupportedError where calls make the kernel too long."""
        if self.inlining and len(self.statements) >= MAX_INLINED:
            raise UnsupportedError(f"calls that make more than {MAX_INLINED:,} instructions", statement.place)
        self.statements.append(statement)
