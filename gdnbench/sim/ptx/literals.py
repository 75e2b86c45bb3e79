# SPDX-License-Identifier: Apache-2.0
"""Numeric literals as bits, in the width of their operand (PTX ISA 4.5, Constants)."""

from __future__ import annotations

import struct

from gdnbench.sim.errors import PtxSyntaxError

_FLOAT_FORMATS = {16: "<e", 32: "<f", 64: "<d"}


# Element types whose name does not end with the width of their container.
_ODD_WIDTHS = {"e4m3": 8, "e5m2": 8, "e2m3": 8, "e3m2": 8, "e2m1": 4, "ue8m0": 8, "tf32": 32}


def width_of(type_name: str) -> int:
    """Bits of one register of a type suffix: f32 32, bf16x2 32, e4m3x2 16, f32x2 64, pred 1."""
    if type_name == "pred":
        return 1
    element, _, count = type_name.partition("x")
    packed = int(count) if count else 1
    bits = _ODD_WIDTHS.get(element) or int("".join(c for c in element if c.isdigit()))
    return bits * packed


def literal_bits(text: str, negative: bool, width: int, line: int) -> int:
    """The bits of a literal. An integer of up to 64 bits is truncated to `width` bits (PTX ISA 4.5.1).

    Raises PtxSyntaxError for a larger integer, or for a floating-point constant where the width has no such
    format.
    """
    lower = text.lower()
    if lower.startswith(("0f", "0d")):
        source = 32 if lower[1] == "f" else 64
        bits = int(text[2:], 16) ^ ((1 << (source - 1)) if negative else 0)
        if source == width:
            return bits
        value = struct.unpack(_FLOAT_FORMATS[source], bits.to_bytes(source // 8, "little"))[0]
        return _float_bits(value, width, line)
    if "." in text or ("e" in lower and not lower.startswith("0x")):
        return _float_bits(-float(text) if negative else float(text), width, line)
    try:
        value = _integer(lower.rstrip("u"))
    except ValueError:
        raise PtxSyntaxError(f"PTX line {line}: {text!r} is no constant") from None
    value = -value if negative else value
    if not -(1 << 63) <= value < 1 << 64:
        # The text, not the value: Python converts no integer of more than 4,300 digits to decimal.
        raise PtxSyntaxError(f"PTX line {line}: the integer {text} does not fit 64 bits")
    return value & ((1 << width) - 1) if width > 1 else int(value != 0)


def _integer(text: str) -> int:
    if text.startswith("0x"):
        return int(text, 16)
    if text.startswith("0b"):
        return int(text, 2)
    return int(text, 8) if text.startswith("0") and len(text) > 1 else int(text)


def _float_bits(value: float, width: int, line: int) -> int:
    if width not in _FLOAT_FORMATS:
        raise PtxSyntaxError(f"PTX line {line}: a floating-point constant where {width} bits are expected")
    try:
        packed = struct.pack(_FLOAT_FORMATS[width], value)
    except OverflowError:
        raise PtxSyntaxError(f"PTX line {line}: {value} does not fit {width} bits") from None
    return int.from_bytes(packed, "little")
