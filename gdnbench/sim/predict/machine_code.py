# SPDX-License-Identifier: Apache-2.0
"""The machine code that ptxas makes of a kernel, in its order, each instruction with the PTX instruction it
is for, and with what the compiler tells the hardware in its control bits.

ptxas tells lines apart by `.loc`. So the PTX is assembled once more with a `.loc` of its own in front of each
instruction, and `nvdisasm` prints which line each machine instruction belongs to.

An instruction of Volta and later has 128 bits. The upper ones control its issue (Jia et al., "Dissecting the
NVIDIA Volta GPU architecture via microbenchmarking", arXiv 1804.06826, 2.1): cycles until the next
instruction of the warp may issue, the scoreboards that it waits for, and the scoreboards that say when it has
read its operands and when its result is there.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from gdnbench.artifact_cache import ArtifactCache
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.host.machines import MACHINES
from gdnbench.sim.ptx.flow import targets_of
from gdnbench.sim.ptx.ir import Kernel, Module

CONTROL_BIT = 105 - 64
"""Where control begins in the upper word: stall 4 bits, yield 1, result 3, read 3, waits 6, reuse 4."""
NONE = 7
"""No scoreboard."""
_NUMBERS = struct.Struct("<iH4B")  # of an instruction: pc, opcode, stall, waits, result, read


@dataclass(frozen=True, slots=True)
class MachineInstruction:
    """A machine instruction for the PTX instruction at `pc`. `stall`: cycles until the warp's next one may
    issue. `waits`: scoreboards, as bits, that must be free before. `result`, `read`: the scoreboard that is
    taken until the result is there, until the operands are read; None without."""

    pc: int
    opcode: str
    stall: int
    waits: int
    result: int | None
    read: int | None


_DIRECTIVE = re.compile(r"\s*\.(loc|file)\b")
_SECTION = re.compile(r"(?ms)^\s*\.section\s+\.debug.*?^\s*\}\s*$")
_HEADER = re.compile(r"(\.address_size\s+64[^\n]*\n)")
_LABEL = re.compile(r"\s*[\w$%]+:")
_LINE = re.compile(r'//## File "[^"]*", line (\d+)')
_CODE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+((?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)[^;]*?)\s*;\s+/\* 0x")
_REST = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/")


def with_lines(module: Module, kernel: Kernel, *, unrolled: bool = False) -> str:
    """The module's PTX in which each instruction of the kernel is a line of its own, its pc + 1. Unless it
    may be `unrolled`, ptxas unrolls no loop: of an unrolled loop each round would seem to execute all copies
    of its body."""
    places = {ins.place.line: ins.pc for ins in kernel.instructions}
    loops = {
        kernel.instructions[target.pc].place.line
        for ins in kernel.instructions
        for target in targets_of(ins)
        if target.pc <= ins.pc and not unrolled
    }
    found = []
    for number, text in enumerate(_SECTION.sub(_blank, module.text).split("\n"), 1):
        if _DIRECTIVE.match(text):
            continue
        if number in loops:
            label = _LABEL.match(text)
            if label:
                found.append(label.group())
                text = text[label.end() :]
            found.append('.pragma "nounroll";')
        pc = places.get(number)
        if pc is not None:
            found.append(f".loc 1 {pc + 1} 0")
        found.append(text)
    return _HEADER.sub(r'\1.file 1 "kernel"' + "\n", "\n".join(found), count=1)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


def tool(name: str, what: str = "the time") -> str:
    """The path of a program of the CUDA toolkit: on PATH, or of NVIDIA's packages. Raises UnsupportedError,
    which says that `what` cannot be had, if there is none."""
    found = shutil.which(name)
    spec = find_spec("nvidia")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        for path in sorted(Path(folder).glob(f"*/bin/{name}")):
            found = found or str(path)
    if found is None:
        raise UnsupportedError(f"{what} without {name} of the CUDA toolkit: pip install 'gdnbench[predict]'")
    return found


def tool_versions() -> list[str]:
    """The last line that each program prints of its version. Raises as `tool`."""
    return [run_tool([tool(name), "--version"]).strip().splitlines()[-1] for name in ("ptxas", "nvdisasm")]


CACHE = ArtifactCache("machine-code", b"gdnbench-machine-code-1\n")
_kept: dict[tuple[str, str, str], tuple[MachineInstruction, ...]] = {}


def arch_of(module: Module, machine: str) -> str:
    """What the module's kernels are assembled for on a GPU: a target such as sm_90a runs on no other, sm_80
    on every later one."""
    return module.target if module.target.endswith(("a", "f")) else MACHINES[machine].arch


def machine_code(module: Module, kernel: Kernel, arch: str) -> tuple[MachineInstruction, ...]:
    """The kernel's machine code for `arch`, such as sm_90a. It is kept in the process and on disk: for small
    launches ptxas takes longer than everything else. Raises UnsupportedError without ptxas and nvdisasm, and
    for PTX that ptxas refuses."""
    known = module.text, kernel.name, arch
    found = _kept.get(known)
    if found is None:
        key = _key(*known)
        found = _fetch(key)
        if found is None:
            found = _assemble(module, kernel, arch)
            CACHE.keep(key, *_packed(found))
        _kept[known] = found
    return found


def assemble(module: Module, kernel: Kernel, arch: str) -> None:
    """Let `machine_code` find the kernel assembled, in this process and in its children. Raises what it
    raises."""
    known = module.text, kernel.name, arch
    if known not in _kept and CACHE.fetch(_key(*known)) is None:
        machine_code(module, kernel, arch)


def _key(*parts: str) -> str:
    """A digest of the kernel, of the tools as files, and of this module."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for name in ("ptxas", "nvdisasm"):
        path = tool(name)
        status = os.stat(path)
        parts = (*parts, f"{path} {status.st_size} {status.st_mtime_ns}")
    for part in parts:
        digest.update(f"{len(part)} {part}".encode())
    return digest.hexdigest()


def _fetch(key: str) -> tuple[MachineInstruction, ...] | None:
    entry = CACHE.fetch(key)
    if entry is None:
        return None
    opcodes, (numbers,) = entry[0]["opcodes"], entry[1]
    return tuple(
        MachineInstruction(pc, opcodes[opcode], stall, waits, _board(result), _board(read))
        for pc, opcode, stall, waits, result, read in _NUMBERS.iter_unpack(numbers)
    )


def _packed(codes: Sequence[MachineInstruction]) -> tuple[dict[str, Any], list[bytes]]:
    """The record and the bytes of an entry: the opcodes, and numbers for each instruction."""
    places = {opcode: place for place, opcode in enumerate(dict.fromkeys(code.opcode for code in codes))}
    numbers = b"".join(
        _NUMBERS.pack(
            code.pc,
            places[code.opcode],
            code.stall,
            code.waits,
            NONE if code.result is None else code.result,
            NONE if code.read is None else code.read,
        )
        for code in codes
    )
    return {"opcodes": [*places]}, [numbers]


def _board(number: int) -> int | None:
    return None if number == NONE else number


def _assemble(module: Module, kernel: Kernel, arch: str) -> tuple[MachineInstruction, ...]:
    return tuple(_parse(disassembled(with_lines(module, kernel), arch), kernel.name))


def disassembled(ptx: str, arch: str, what: str = "the time") -> str:
    """What nvdisasm prints of the PTX as ptxas assembles it for `arch`: text, source lines and encodings.
    Raises UnsupportedError, which says that `what` cannot be had, without the two programs and for PTX that
    ptxas refuses."""
    with tempfile.TemporaryDirectory(prefix="gdnbench-code-") as folder:
        source, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx, encoding="utf-8")
        run_tool([tool("ptxas", what), "-arch", arch, "-lineinfo", "-o", str(cubin), str(source)], what)
        return run_tool([tool("nvdisasm", what), "-g", "-c", "-hex", str(cubin)], what)


class Line(NamedTuple):
    """An instruction as nvdisasm prints it: the pc of its PTX instruction, -1 if it has none, its address in
    bytes from the kernel's begin, its text without the semicolon, and its opcode."""

    pc: int
    address: int
    text: str
    opcode: str


def code_lines(listing: str, kernel: str) -> Iterator[tuple[Line, int]]:
    """The instructions of a kernel of the listing, each with the upper word of its encoding."""
    inside, pc = False, -1
    found: Line | None = None
    for line in listing.splitlines():
        if line.startswith(("\t.section", ".section")):
            inside = re.split(r"[\s,]+", line.strip())[1] == f".text.{kernel}"
        elif not inside:
            continue
        elif marked := _LINE.search(line):
            pc = int(marked.group(1)) - 1
        elif code := _CODE.search(line):
            found = Line(pc, int(code.group(1), 16), " ".join(code.group(2).split()), code.group(3))
        elif found is not None and (rest := _REST.match(line)):
            yield found, int(rest.group(1), 16)
            found = None


def run_tool(command: list[str], what: str = "the time") -> str:
    """What a program prints. Raises UnsupportedError, which says that `what` cannot be had, if it fails."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise UnsupportedError(f"{what}: {command[0]} does not start: {error.strerror}") from error
    if done.returncode:
        first = next(
            iter((done.stderr or done.stdout).strip().splitlines()), f"exit status {done.returncode}"
        )
        raise UnsupportedError(f"{what}, since {name} failed: {first.removeprefix(name).strip()}")
    return done.stdout


def _parse(listing: str, kernel: str) -> Iterator[MachineInstruction]:
    for line, upper in code_lines(listing, kernel):
        control = upper >> CONTROL_BIT
        stall, waits = control & 15, control >> 11 & 63
        result, read = control >> 5 & 7, control >> 8 & 7
        yield MachineInstruction(line.pc, line.opcode, stall, waits, _board(result), _board(read))
