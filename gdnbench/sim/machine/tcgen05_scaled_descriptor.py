# SPDX-License-Identifier: Apache-2.0
"""The instruction descriptor and the scale vectors of block-scaled tcgen05.mma.

PTX ISA 9.0, tables 39, 43, 44, 54 and 55; CUTLASS `mma_sm100_desc.hpp`, `InstrDescriptorBlockScaled`. A value
that the ISA forbids raises KernelFault.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.tcgen05_descriptor import SUB_BYTE, bit_field
from gdnbench.sim.tensorcore.formats import FORMATS
from gdnbench.sim.tensorcore.scaled import UE4M3, UE8M0, ScaledProduct

_EIGHT_BIT = "mxf8f6f4"
_DEPTH = {_EIGHT_BIT: 32, "mxf4": 64, "mxf4nvf4": 64}
# Element types by kind: code in bits 7..9 and 10..12.
_MIXED = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_TYPES = {_EIGHT_BIT: _MIXED, "mxf4": {1: "e2m1"}, "mxf4nvf4": {1: "e2m1"}}
_SCALES = {0: UE4M3, 1: UE8M0}
# Table 54: the elements of a scale, by kind and suffix.
_BLOCKS = {
    (_EIGHT_BIT, ""): 32,
    (_EIGHT_BIT, "scale_vec::1X"): 32,
    (_EIGHT_BIT, "block32"): 32,
    ("mxf4", ""): 32,
    ("mxf4", "scale_vec::2X"): 32,
    ("mxf4", "block32"): 32,
    ("mxf4nvf4", "scale_vec::2X"): 32,
    ("mxf4nvf4", "block32"): 32,
    ("mxf4nvf4", "scale_vec::4X"): 16,
    ("mxf4nvf4", "block16"): 16,
}


@dataclass(frozen=True, slots=True)
class ScaledDescriptor:
    """The types, shape and negation of a block-scaled product of `ctas` CTAs; `*_mn_major` are the transpose
    bits. `*_scale` is the first byte of the scales of A and of B within 32-bit cells of TMEM (SFA_ID and
    SFB_ID)."""

    product: ScaledProduct
    m: int
    n: int
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool
    a_scale: int
    b_scale: int
    ctas: int = 1

    @property
    def padded(self) -> bool:
        """Whether elements of less than a byte are padded to bytes; packed otherwise."""
        return self.product.k == _DEPTH[_EIGHT_BIT]


@cache
def block_of(mods: tuple[str, ...]) -> tuple[str, int]:
    """The kind and the elements of a scale of these suffixes. Raises UnsupportedError for a combination that
    table 54 does not have."""
    kind = next(mod.removeprefix("kind::") for mod in mods if mod.startswith("kind::"))
    suffix = next((mod for mod in mods if mod.startswith(("scale_vec::", "block1", "block3"))), "")
    block = _BLOCKS.get((kind, suffix))
    if block is None:
        vector = f".{suffix}" if suffix else " without the size of its scale vector"
        raise UnsupportedError(
            f"kind::{kind}.block_scale{vector}: PTX ISA 9.0, table 54, has no such product"
        )
    return kind, block


@cache
def decode_scaled(bits: int, kind: str, block: int, ctas: int = 1) -> ScaledDescriptor:
    """Decode an instruction descriptor (table 43 or 44). `block`: the elements of a scale; `ctas`: the CTAs
    that the product works on."""
    name = f"instruction descriptor 0x{bits:08x}"
    if bit_field(bits, 2, 1):
        raise UnsupportedError(f"sparse matrices ({name}, bit 2)")
    for low, width in ((0, 2), (3, 1), (6, 1), (24, 3)):
        if bit_field(bits, low, width):
            raise _illegal(f"{name}: bits {low}..{low + width - 1} must be zero for kind::{kind}")
    if bit_field(bits, 31, 1):
        # Only sm_103a has it.
        raise _illegal(f"{name}: K = 96 (bit 31) needs kind::mxf4 or kind::mxf4nvf4 of sm_103a")
    types = []
    for low, what in ((7, "A"), (10, "B")):
        # CUTLASS's Tcgen05MxOmmaInstrDesc sets bit 12, which table 44 reserves: a sparsity version, it says,
        # "irrelevant for SM100".
        code = bit_field(bits, low, 3 if kind == _EIGHT_BIT or what == "A" else 2)
        if code not in _TYPES[kind]:
            raise _illegal(f"{name}: kind::{kind} has no type {code} of {what}")
        types.append(_TYPES[kind][code])
    negate_a, negate_b, a_mn_major, b_mn_major = (bool(bit_field(bits, low, 1)) for low in range(13, 17))
    for operand, mn_major, what in ((types[0], a_mn_major, "A"), (types[1], b_mn_major, "B")):
        if mn_major and operand in SUB_BYTE:
            raise _illegal(f"{name}: {operand} operand {what} cannot be MN-major")
    m, n = bit_field(bits, 27, 2) << 7, bit_field(bits, 17, 6) << 3
    sizes = (128,) if ctas == 1 else (128, 256)
    if m not in sizes:
        listed = " and ".join(map(str, sizes))
        raise _illegal(f"{name}: M = {m}; kind::{kind} of cta_group::{ctas} has M = {listed}")
    step = (16 if b_mn_major else 8) * ctas
    if not step <= n <= 256 or n % step:
        raise _illegal(f"{name}: N = {n}; a multiple of {step} from {step} to 256 is needed")
    scale = _SCALES[bit_field(bits, 23, 1)]
    if scale is UE4M3 and (kind, block) != ("mxf4nvf4", 16):
        raise _illegal(f"{name}: scales ue4m3 (bit 23) are for kind::mxf4nvf4 with blocks of 16 only")
    product = ScaledProduct(FORMATS[types[0]], FORMATS[types[1]], scale, block, _DEPTH[kind])
    a_scale, b_scale = bit_field(bits, 29, 2), bit_field(bits, 4, 2)
    for first, what in ((a_scale, "A"), (b_scale, "B")):
        if first % product.scales:
            raise _illegal(
                f"{name}: scale factor id {first} of {what}; {product.scales} scales of a row start at a "
                f"multiple of {product.scales} bytes"
            )
    return ScaledDescriptor(product, m, n, negate_a, negate_b, a_mn_major, b_mn_major, a_scale, b_scale, ctas)


def _illegal(message: str) -> KernelFault:
    return KernelFault(FaultKind.DESCRIPTOR, message)
