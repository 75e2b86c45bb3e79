# SPDX-License-Identifier: Apache-2.0
"""Reads ELF objects as far as the simulator needs: symbols of host objects, kernel attributes of cubins.

The layout is the System V ABI's ("Object Files": ELF64 header, section header, symbol table). NVIDIA does not
document a cubin's additions. This module uses those that `cuobjdump -elf` prints: the section
`.nv.shared.<kernel>` for static shared memory, and in `.nv.info` the register count (attribute 0x2f: symbol
index, count) and the stack (0x12: symbol index, bytes). Opcodes are those of `nvdisasm -hex`; a test compares
their count with ptxas's report of spills. A fat binary is a header (magic, version, header size, size) and
entries (kind, version, header size, size, ...), see CUDA's fatbinary.h.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

SYMBOL_TABLE = 2
UNDEFINED = 0
GLOBAL_OR_WEAK = (1, 2)
NO_CONTENTS = 8

FAT_BINARY = 0xBA55ED50
FAT_CUBIN = 2

INFO_REGISTERS = 0x2F
INFO_MIN_STACK_SIZE = 0x12
# An attribute of this format has a 16-bit size before its value; the others carry 16 bits at most.
FORMAT_SIZED = 0x04

# The low 9 of an instruction's first 64 bits are the operation, the next 3 the form of its operands.
INSTRUCTION_BYTES = 16
OPCODE = 0x1FF
LOCAL_ACCESSES = (0x187, 0x183)  # STL, LDL


@dataclass(frozen=True, slots=True)
class Section:
    """A section with its contents; a section without contents (.bss) has only a `size`."""

    name: str
    kind: int
    link: int
    size: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Symbol:
    """An entry of the symbol table."""

    name: str
    section: int
    binding: int

    @property
    def undefined(self) -> bool:
        """Whether another object has to define it."""
        return bool(self.name) and self.section == UNDEFINED and self.binding in GLOBAL_OR_WEAK


@dataclass(frozen=True, slots=True)
class Elf:
    """A 64-bit little-endian object."""

    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]

    @classmethod
    def parse(cls, data: bytes) -> Elf:
        """Parse an object. Raises ValueError if `data` is no 64-bit little-endian ELF object."""
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("no 64-bit little-endian ELF object")
        (table,) = struct.unpack_from("<Q", data, 40)
        stride, count, names = struct.unpack_from("<HHH", data, 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * stride) for i in range(count)]
        strings = data[headers[names][4] :]
        sections = tuple(
            Section(
                name=_text(strings, header[0]),
                kind=header[1],
                link=header[6],
                size=header[5],
                data=b"" if header[1] == NO_CONTENTS else data[header[4] : header[4] + header[5]],
            )
            for header in headers
        )
        return cls(sections, tuple(_symbols(sections)))

    def undefined(self) -> list[str]:
        """Names that another object must define, in order."""
        return sorted({symbol.name for symbol in self.symbols if symbol.undefined})

    def section(self, name: str) -> Section | None:
        """The section called `name`."""
        return next((section for section in self.sections if section.name == name), None)

    def registers(self, kernel: str) -> int | None:
        """Registers per thread of a kernel in a cubin; None if the cubin has no such attribute."""
        return self._info(INFO_REGISTERS, kernel)

    def stack(self, kernel: str) -> int | None:
        """Bytes of stack per thread of a kernel in a cubin; None if the cubin has no such attribute."""
        return self._info(INFO_MIN_STACK_SIZE, kernel)

    def local_accesses(self) -> int:
        """The number of local-memory loads and stores in a cubin's machine code: spills and stack
        variables."""
        code = [section.data for section in self.sections if section.name.startswith(".text.")]
        opcodes = [
            struct.unpack_from("<Q", data, at)[0] & OPCODE
            for data in code
            for at in range(0, len(data), INSTRUCTION_BYTES)
        ]
        return sum(opcode in LOCAL_ACCESSES for opcode in opcodes)

    def _info(self, wanted: int, kernel: str) -> int | None:
        """The value of a kernel's (symbol index, value) attribute in `.nv.info`."""
        info = self.section(".nv.info")
        data, at = (info.data if info else b""), 0
        while at + 4 <= len(data):
            form, attribute, size = data[at], data[at + 1], struct.unpack_from("<H", data, at + 2)[0]
            at += 4
            if form != FORMAT_SIZED:
                continue
            if attribute == wanted:
                symbol, value = struct.unpack_from("<II", data, at)
                if self.symbols[symbol].name == kernel:
                    return int(value)
            at += size
        return None

    def static_shared(self, kernel: str) -> int:
        """Bytes of static shared memory of a kernel in a cubin."""
        section = self.section(f".nv.shared.{kernel}")
        return section.size if section else 0


def cubin_at(address: int) -> Elf:
    """The cubin at an address of this process, alone or first in a fat binary. Raises ValueError
    otherwise."""
    header = ctypes.string_at(address, 16)
    if header[:4] == b"\x7fELF":
        return Elf.parse(ctypes.string_at(address, _elf_size(ctypes.string_at(address, 64))))
    magic, _, header_size, size = struct.unpack("<IHHQ", header)
    if magic != FAT_BINARY:
        raise ValueError("neither a cubin nor a fat binary")
    data = ctypes.string_at(address + header_size, size)
    kind, _, entry_size, payload = struct.unpack_from("<HHIQ", data, 0)
    if kind != FAT_CUBIN:
        raise ValueError(f"a fat binary that starts with an entry of kind {kind}")
    return Elf.parse(data[entry_size : entry_size + payload])


def _elf_size(header: bytes) -> int:
    """Bytes of an ELF file, from its first 64 bytes: the section header table is at its end."""
    programs, sections = struct.unpack_from("<QQ", header, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", header, 54)
    return int(max(sections + section_size * section_count, programs + program_size * program_count))


def _symbols(sections: tuple[Section, ...]) -> list[Symbol]:
    found = []
    for section in sections:
        if section.kind == SYMBOL_TABLE:
            names = sections[section.link].data
            for at in range(0, len(section.data), 24):
                name, info, _, index = struct.unpack_from("<IBBH", section.data, at)
                found.append(Symbol(_text(names, name), index, info >> 4))
    return found


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode("latin-1")
