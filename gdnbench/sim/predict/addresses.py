# SPDX-License-Identifier: Apache-2.0
"""The addresses of a kernel's machine instructions, each with its text and the PTX instruction it is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.predict.machine_code import (
    MachineInstruction,
    code_lines,
    disassembled,
    tool,
    with_lines,
)
from gdnbench.sim.predict.regions import at_accesses
from gdnbench.sim.ptx.ir import Kernel, Module

WHAT = "addresses of machine instructions"


@dataclass(frozen=True, slots=True)
class AddressedInstruction(MachineInstruction):
    """A machine instruction at `address`, in bytes from the kernel's begin; `text` as nvdisasm prints it,
    without the semicolon. Its control bits are not read."""

    address: int
    text: str


def need_tools() -> None:
    """Raises UnsupportedError if ptxas or nvdisasm is missing."""
    for name in ("ptxas", "nvdisasm"):
        tool(name, WHAT)


def addresses(module: Module, kernel: Kernel, arch: str) -> tuple[AddressedInstruction, ...]:
    """The kernel as ptxas assembles it for `arch`, loops unrolled as ptxas likes. Raises UnsupportedError
    without ptxas and nvdisasm, for PTX that ptxas refuses, and where lines of its own for every PTX
    instruction change what ptxas makes of the kernel."""
    as_given = tuple(_addressed(disassembled(module.text, arch, WHAT), kernel.name))
    with_pcs = disassembled(with_lines(module, kernel, unrolled=True), arch, WHAT)
    marked = tuple(_addressed(with_pcs, kernel.name))
    if [(one.address, one.text) for one in as_given] != [(one.address, one.text) for one in marked]:
        raise UnsupportedError(f"{WHAT} of {kernel.name}: ptxas makes other code of it when lines are marked")
    return tuple(at_accesses(kernel, marked))


def _addressed(listing: str, kernel: str) -> Iterator[AddressedInstruction]:
    for line, _ in code_lines(listing, kernel):
        yield AddressedInstruction(line.pc, line.opcode, 0, 0, None, None, line.address, line.text)
