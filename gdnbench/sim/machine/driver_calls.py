# SPDX-License-Identifier: Apache-2.0
"""The functions of the CUDA driver that kernels call: `vprintf`, which is printf, and `__assertfail`, which a
failed assert calls (CUDA C++ Programming Guide, "Formatted Output", "Assertion").

The operands are the addresses of the arguments, which are in the thread's local memory.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.counters import MOST_PRINTED
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.memory import Bytes, ParameterMemory, resolve
from gdnbench.sim.machine.operands import active_lanes, scalar_operand
from gdnbench.sim.ptx.ir import Instruction

MAX_STRING = 1 << 16  # bytes of a string without its end

# %[flags][width][.precision][size]type
_CONVERSION = re.compile(
    rb"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d*))?(?P<size>hh|h|ll|l|j|z|t)?"
    rb"(?P<type>[diouxXeEfFgGaAcsp%])"
)
_INTEGER_BYTES = {"hh": 1, "h": 2, "": 4, "l": 8, "ll": 8, "j": 8, "z": 8, "t": 8}
MAX_WIDTH = 4096  # of a printed argument


def read_bytes(cta: Cta, warp: Warp, lane: int, address: int, size: int) -> bytes:
    """`size` bytes at a generic address of one thread. Raises KernelFault out of bounds."""
    space, offset = resolve(address)
    if space == "global":
        return cta.memory.view(offset, size).tobytes()
    if space == "shared":
        return cta.shared.view(offset, size).tobytes()
    memory: Bytes = (
        cta.local[warp.index].bytes[lane] if space == "local" else ParameterMemory(cta.param).bytes
    )
    if offset + size > memory.size:
        raise KernelFault(
            FaultKind.OUT_OF_BOUNDS, f"{size} bytes at {space} address {offset:#x}: there are {memory.size}"
        )
    return memory[offset : offset + size].tobytes()


def read_string(cta: Cta, warp: Warp, lane: int, address: int) -> bytes:
    """The bytes before the zero. Raises KernelFault if there is none in the memory."""
    found = bytearray()
    while (byte := read_bytes(cta, warp, lane, address + len(found), 1)) != b"\0":
        found += byte
        if len(found) > MAX_STRING:
            raise KernelFault(FaultKind.OUT_OF_BOUNDS, f"a string of more than {MAX_STRING:,} bytes")
    return bytes(found)


def format_text(
    text: bytes, argument: Callable[[int], int], string: Callable[[int], bytes]
) -> tuple[str, int]:
    """What printf prints, and the number of arguments that it took. `argument(size)` is the bits of the next
    argument, `string(address)` a string. A conversion that printf does not know is printed as it is."""
    taken = 0

    def take(size: int) -> int:
        nonlocal taken
        taken += 1
        return argument(size)

    def star(given: bytes | None) -> int | None:
        if given is None:
            return None
        return _signed(take(4), 4) if given == b"*" else int(given or b"0")

    def convert(match: re.Match[bytes]) -> bytes:
        if match["type"] == b"%":
            return b"%"
        flags, width, precision = match["flags"].decode(), star(match["width"]), star(match["precision"])
        if width is not None and width < 0:
            flags, width = flags + "-", -width
        if precision is not None and precision < 0:
            precision = None
        width, precision = (None if size is None else min(size, MAX_WIDTH) for size in (width, precision))
        kind = match["type"].decode()
        if kind == "s":
            address = take(8)
            shown = string(address) if address else b"(null)"
            return _padded(shown if precision is None else shown[:precision], width, flags)
        if kind == "c":
            return _padded(bytes([take(4) & 0xFF]), width, flags)
        if kind == "p":
            return _padded(f"{take(8):#x}".encode(), width, flags)
        if kind in "aA":
            shown = float.hex(_double(take(8))).encode()
            return _padded(shown if kind == "a" else shown.upper(), width, flags)
        form = f"%{flags}{'' if width is None else width}{'' if precision is None else f'.{precision}'}"
        if kind in "eEfFgG":
            return (f"{form}{kind}" % _double(take(8))).encode()
        size = _INTEGER_BYTES[(match["size"] or b"").decode()]
        bits = take(max(size, 4)) & ((1 << 8 * size) - 1)
        value = _signed(bits, size) if kind in "di" else bits
        number = f"{form}{'d' if kind in 'iu' else kind}" % value
        return (number.replace("0o", "0", 1) if kind == "o" else number).encode()

    return _CONVERSION.sub(convert, text).decode("utf-8", "replace"), taken


def _signed(bits: int, size: int) -> int:
    return bits - (1 << 8 * size) if bits >> (8 * size - 1) else bits


def _double(bits: int) -> float:
    value: float = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
    return value


def _padded(text: bytes, width: int | None, flags: str) -> bytes:
    return text if width is None else text.ljust(width) if "-" in flags else text.rjust(width)


class _Arguments:
    """The arguments behind the format: each at a multiple of its size, as C++ promotes them."""

    def __init__(self, cta: Cta, warp: Warp, lane: int, address: int) -> None:
        self.read: Callable[[int, int], bytes] = lambda at, size: read_bytes(cta, warp, lane, at, size)
        self.address = address
        self.offset = 0

    def take(self, size: int) -> int:
        start = -(-self.offset // size) * size
        self.offset = start + size
        return int.from_bytes(self.read(self.address + start, size), "little")


def thread_index(cta: Cta, warp: Warp, lane: int) -> tuple[int, int, int]:
    """%tid of a lane."""
    x, y, _ = cta.block
    thread = warp.index * 32 + lane
    return thread % x, thread // x % y, thread // (x * y)


def _where(cta: Cta, warp: Warp, lane: int) -> str:
    return f"block {cta.ctaid}, thread {thread_index(cta, warp, lane)}"


def printable(text: str) -> str:
    """Escapes what a terminal could take for a command."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def _value(cta: Cta, warp: Warp, lane: int, addresses: Argument, size: int) -> int:
    """An argument of a call, by its address."""
    at = int(scalar_operand(addresses)[lane])
    return int.from_bytes(read_bytes(cta, warp, lane, at, size), "little")


def _vprintf(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """Prints on stderr, and says which thread did; the launch's report keeps the texts too. printf returns
    the number of arguments, -1 without a format."""
    for lane in active_lanes(lanes):
        address, buffer = (_value(cta, warp, lane, source, 8) for source in sources[:2])
        taken = -1
        if address:
            arguments = _Arguments(cta, warp, lane, buffer)
            text, taken = format_text(
                read_string(cta, warp, lane, address),
                arguments.take,
                lambda at, lane=lane: read_string(cta, warp, lane, at),  # type: ignore[misc]
            )
            line = f"{_where(cta, warp, lane)}: {printable(text).removesuffix(chr(10))}"
            sys.stderr.write(f"{cta.launch.kernel.name}, {line}\n")
            if len(cta.counters.printed) < MOST_PRINTED:
                cta.counters.printed.append((cta.index, line))
        if len(sources) > 2:
            _, at = resolve(int(scalar_operand(sources[2])[lane]))
            result = np.frombuffer(struct.pack("<i", taken), np.uint8)
            cta.local[warp.index].bytes[lane, at : at + 4] = result
    sys.stderr.flush()
    return ()


def _assertfail(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """Raises the fault of the first thread whose assertion failed."""
    lane = active_lanes(lanes)[0]

    def text(operand: Argument) -> str:
        address = _value(cta, warp, lane, operand, 8)
        shown = read_string(cta, warp, lane, address).decode("utf-8", "replace") if address else "unknown"
        return printable(shown).replace("\n", " ")

    message, file, line, function, _ = sources
    where = f"{text(file)}:{_value(cta, warp, lane, line, 4)}: {text(function)}"
    raise KernelFault(
        FaultKind.ASSERTION, f"{where}: {_where(cta, warp, lane)}: assertion `{text(message)}` failed"
    )


HANDLERS: dict[str, Handler] = {"call.vprintf": _vprintf, "call.__assertfail": _assertfail}
