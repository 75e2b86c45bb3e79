# SPDX-License-Identifier: Apache-2.0
"""Parses PTX text to typed IR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdnbench.sim.lazy import lazy_names

if TYPE_CHECKING:
    from gdnbench.sim.ptx.entries import entry_names, keep_entry
    from gdnbench.sim.ptx.ir import Address, Immediate, Instruction, Kernel, Module, Register, Symbol
    from gdnbench.sim.ptx.parser import parse
    from gdnbench.sim.ptx.register_formats import BITS, FLOATS

__all__ = [
    "BITS",
    "FLOATS",
    "Address",
    "Immediate",
    "Instruction",
    "Kernel",
    "Module",
    "Register",
    "Symbol",
    "entry_names",
    "keep_entry",
    "parse",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gdnbench.sim.ptx.entries": "entry_names keep_entry",
        "gdnbench.sim.ptx.ir": "Address Immediate Instruction Kernel Module Register Symbol",
        "gdnbench.sim.ptx.parser": "parse",
        "gdnbench.sim.ptx.register_formats": "BITS FLOATS",
    },
)
