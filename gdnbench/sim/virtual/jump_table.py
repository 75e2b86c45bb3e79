# SPDX-License-Identifier: Apache-2.0
"""A shared library whose functions jump to addresses that this process fills in, made without a compiler.

    table = JumpTable("libcuda.so.1", ("cuInit", "cuDeviceGet"), otherwise=4)
    table.assign("cuInit", address)

Once it is loaded, the dynamic linker finds it wherever the process asks for a library of that name: a name
without a folder is compared with the names (DT_SONAME) of the libraries that are loaded.

The file is an ELF64 object (System V ABI, "Object Files" and "Dynamic Linking") of two segments: one with the
symbols, their hash table and the code, and one with the dynamic section and the table of addresses. It lies
in memory (memfd_create(2)) and on no disk.

Imports the standard library alone: it is loaded when Python starts.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Mapping, Sequence

NULL_RESULT = -1  # writes a null pointer to the address that is the first parameter, and returns 0

_CODE = 16  # bytes for each piece of code
_PAGE = 0x10000  # the largest page of either machine, in bytes
_TABLE = "gdnbench_jump_table"

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ENTRY = struct.Struct("<QQ")
_SHARED_OBJECT, _LOADED, _DYNAMIC, _STACK = 3, 1, 2, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4
_GLOBAL_FUNCTION, _GLOBAL_OBJECT = 0x12, 0x11
_END, _HASH, _STRINGS, _SYMBOLS, _STRINGS_SIZE, _SYMBOL_SIZE, _SONAME = 0, 4, 5, 6, 10, 11, 14


def _jump_x86_64(place: int, slot: int) -> bytes:
    return struct.pack("<2si", b"\xff\x25", slot - place - 6)  # jmp *offset(%rip)


def _jump_aarch64(place: int, slot: int) -> bytes:
    pages = (slot >> 12) - (place >> 12)
    page = 0x90000010 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5  # adrp x16, slot
    load = 0xF9400210 | (slot >> 3 & 0x1FF) << 10  # ldr x16, [x16, #slot]
    return struct.pack("<III", page, load, 0xD61F0200)  # br x16


def _return_x86_64(value: int) -> bytes:
    if value == NULL_RESULT:
        return b"\x48\xc7\x07\0\0\0\0\x31\xc0\xc3"  # movq $0, (%rdi); xor %eax, %eax; ret
    return struct.pack("<BIB", 0xB8, value, 0xC3)  # mov $value, %eax; ret


def _return_aarch64(value: int) -> bytes:
    if value == NULL_RESULT:
        return struct.pack("<III", 0xF900001F, 0x52800000, 0xD65F03C0)  # str xzr, [x0]; mov w0, #0; ret
    return struct.pack("<II", 0x52800000 | value << 5, 0xD65F03C0)  # mov w0, #value; ret


# ELF's number of the machine, and what makes a piece of code.
_MACHINES = {
    "x86_64": (62, _jump_x86_64, _return_x86_64),
    "aarch64": (183, _jump_aarch64, _return_aarch64),
}


def _return_name(value: int) -> str:
    return "gdnbench_return_null" if value == NULL_RESULT else f"gdnbench_return_{value}"


def supported() -> bool:
    """Whether such libraries can be made here: on Linux, x86-64 or AArch64."""
    return sys.platform == "linux" and os.uname().machine in _MACHINES and hasattr(os, "memfd_create")


class JumpTable:
    """A library that is loaded as `library`. `functions` are its functions by name, each with the number, 0
    to 65535, or NULL_RESULT, that it returns as long as it has no address, and after `withdraw`."""

    def __init__(self, soname: str, functions: Mapping[str, int]) -> None:
        image = shared_object(soname, functions, os.uname().machine)
        file = os.memfd_create(soname)  # open as long as the process lives: the linker knows its path
        with open(file, "wb", closefd=False) as stream:
            stream.write(image)
        self.library = ctypes.CDLL(f"/proc/self/fd/{file}", mode=ctypes.RTLD_GLOBAL)
        self._slots = {name: slot for slot, name in enumerate(functions)}
        self._addresses = (ctypes.c_uint64 * len(functions)).in_dll(self.library, _TABLE)
        self._returning = [self.address(_return_name(number)) for number in functions.values()]
        self.withdraw()

    def assign(self, name: str, address: int) -> None:
        """Let the function `name` be the one at `address`."""
        self._addresses[self._slots[name]] = address

    def target(self, name: str) -> int:
        """The address that the function `name` leads to."""
        return int(self._addresses[self._slots[name]])

    def withdraw(self) -> None:
        """Let every function return its number and do nothing else."""
        for slot, address in enumerate(self._returning):
            self._addresses[slot] = address

    def address(self, name: str) -> int:
        """Where the library's function `name` is, which stays the same whatever is assigned."""
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0


def shared_object(soname: str, functions: Mapping[str, int], machine: str) -> bytes:
    """The library as a file. `machine` is x86_64 or aarch64."""
    number, jump, give_back = _MACHINES[machine]
    names, constants = list(functions), sorted(set(functions.values()))
    symbols = [*names, *(_return_name(constant) for constant in constants), _TABLE]
    strings, offsets = _string_table([*symbols, soname])
    hashes = _hash_table(symbols)
    at_hashes = _HEADER.size + 4 * _SEGMENT.size
    at_symbols = at_hashes + -(-len(hashes) // 8) * 8
    at_strings = at_symbols + (1 + len(symbols)) * _SYMBOL.size
    at_code = -(-(at_strings + len(strings)) // 16) * 16
    code_end = at_code + (len(symbols) - 1) * _CODE
    at_dynamic = -(-code_end // _PAGE) * _PAGE
    dynamic = _dynamic_section(at_hashes, at_symbols, at_strings, len(strings), offsets[soname])
    at_slots = at_dynamic + len(dynamic)
    slots_size = 8 * len(names)

    code = [jump(at_code + index * _CODE, at_slots + 8 * index) for index in range(len(names))]
    code += [give_back(constant) for constant in constants]
    code = [piece.ljust(_CODE, b"\0") for piece in code]
    entries = [bytes(_SYMBOL.size)]
    for index, name in enumerate(symbols[:-1]):
        place = at_code + index * _CODE
        entries.append(_SYMBOL.pack(offsets[name], _GLOBAL_FUNCTION, 0, 1, place, _CODE))
    entries.append(_SYMBOL.pack(offsets[_TABLE], _GLOBAL_OBJECT, 0, 1, at_slots, slots_size))

    data_size = len(dynamic) + slots_size
    parts = [
        (0, _file_header(number)),
        (
            _HEADER.size,
            _segment(_LOADED, _READ | _EXECUTE, 0, code_end, _PAGE)
            + _segment(_LOADED, _READ | _WRITE, at_dynamic, data_size, _PAGE)
            + _segment(_DYNAMIC, _READ | _WRITE, at_dynamic, len(dynamic), 8)
            + _segment(_STACK, _READ | _WRITE, 0, 0, 16),
        ),
        (at_hashes, hashes),
        (at_symbols, b"".join(entries)),
        (at_strings, strings),
        (at_code, b"".join(code)),
        (at_dynamic, dynamic + bytes(slots_size)),
    ]
    image = bytearray(at_dynamic + data_size)
    for place, part in parts:
        image[place : place + len(part)] = part
    return bytes(image)


def _file_header(machine: int) -> bytes:
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    sizes = (_HEADER.size, _SEGMENT.size, 4, 0, 0, 0)
    return _HEADER.pack(identity, _SHARED_OBJECT, machine, 1, 0, _HEADER.size, 0, 0, *sizes)


def _segment(kind: int, flags: int, place: int, size: int, align: int) -> bytes:
    return _SEGMENT.pack(kind, flags, place, place, place, size, size, align)


def _dynamic_section(hashes: int, symbols: int, strings: int, strings_size: int, soname: int) -> bytes:
    entries = (
        (_SONAME, soname),
        (_HASH, hashes),
        (_SYMBOLS, symbols),
        (_SYMBOL_SIZE, _SYMBOL.size),
        (_STRINGS, strings),
        (_STRINGS_SIZE, strings_size),
        (_END, 0),
    )
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


def _string_table(texts: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    """The strings, each ended by a null, and where each begins."""
    table, offsets = bytearray(1), {}
    for text in texts:
        offsets[text] = len(table)
        table += text.encode() + b"\0"
    return bytes(table), offsets


def _hash_table(symbols: Sequence[str]) -> bytes:
    """DT_HASH: number of buckets and of symbols, the first symbol of each bucket, the next of each symbol.
    Symbol 0 is none."""
    count = max(len(symbols) // 2, 1)
    buckets, chain = [0] * count, [0] * (1 + len(symbols))
    for index, name in enumerate(symbols, 1):
        bucket = _hash(name) % count
        chain[index], buckets[bucket] = buckets[bucket], index
    return struct.pack(f"<{2 + count + len(chain)}I", count, len(chain), *buckets, *chain)


def _hash(name: str) -> int:
    """The ABI's hash of a symbol's name."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return value
