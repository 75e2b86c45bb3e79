# SPDX-License-Identifier: Apache-2.0
"""Block-scaled products: D = (A scale_A) (B scale_B)^T + C over the K of one `tcgen05.mma` of the kinds
`mxf8f6f4`, `mxf4` and `mxf4nvf4` (PTX ISA 9.0, section 9.7.16.10.7).

Each row of A and of B has a scale for every `block` elements of K. `MultiplyScaled` is the interface:
`reference.multiply_scaled` defines it in NumPy, `native.multiply_scaled` computes the same bits faster.
The models are those of `product`:

`exact`     As in `product`: every product of two elements and two scales is exact in fp64.

`hardware`  From MMA-Sim, `tcgen05mma_block_scale` (the source that `product` names), for a B200:
            K = 32  One fused sum as in `product`, with 25 fraction bits. The exponent of a product is
                    nominal: e_a + e_b and those of the two scales. Scales are powers of two.
            K = 64  The dot product of 16 elements of A and B is exact. It is a term of the fused sum with the
                    exponent of its two scales alone, also if it is zero, and with the significands of the
                    scales as factors. There are four of them and C, truncated at 2^(largest exponent - 35);
                    the sum is truncated to f32.
            MMA-Sim lists e4m3, e5m2 and e2m1 for K = 32; e3m2 and e2m3 are assumed to be equal. It lists
            `mxf4nvf4` for K = 64; `mxf4` is assumed to be equal. A zero C is ignored, as in `product`, and so
            is a term whose scale is zero; MMA-Sim gives them exponents of -126 or less.

A NaN scale gives NaN in all of its row or column, even where the elements are zero. No row of this table was
compared with hardware by this project.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.tensorcore.formats import E2M1, Codes, Format
from gdnbench.sim.tensorcore.product import BYTE_FORMATS, ZERO_EXPONENT, Product

# Elements whose dot product is exact, for K = 64, and the fraction bits of the sum of such terms.
GROUP = 16
GROUP_K = 64
GROUP_FRACTION_BITS = 35


@dataclass(frozen=True, slots=True)
class Scales:
    """Decoded scales. A finite one is `significand * 2^(exponent - fraction_bits)`; the exponent of a zero is
    `ZERO_EXPONENT`. For `nan` the others have no meaning."""

    significand: NDArray[np.int64]
    exponent: NDArray[np.int64]
    nan: NDArray[np.bool_]
    fraction_bits: int

    def rows(self, rows: slice) -> Scales:
        """The scales of these rows."""
        return Scales(self.significand[rows], self.exponent[rows], self.nan[rows], self.fraction_bits)


@dataclass(frozen=True, slots=True)
class ScaleFormat:
    """A floating-point format without a sign in eight bits. `exponent_bits` + `fraction_bits` are used; all
    ones are NaN."""

    name: str
    exponent_bits: int
    fraction_bits: int
    subnormals: bool

    def __hash__(self) -> int:
        return hash(self.name)

    def decode(self, codes: Codes) -> Scales:
        """Decode codes into significand and exponent."""
        width = self.exponent_bits + self.fraction_bits
        code = np.asarray(codes).astype(np.int64) & ((1 << width) - 1)
        field, fraction = code >> self.fraction_bits, code & ((1 << self.fraction_bits) - 1)
        bias = (1 << (self.exponent_bits - 1)) - 1
        one = 1 << self.fraction_bits
        if self.subnormals:
            significand = np.where(field == 0, fraction, one + fraction)
            exponent = np.where(significand == 0, ZERO_EXPONENT, np.maximum(field, 1) - bias)
        else:
            significand, exponent = one + fraction, field - bias
        return Scales(significand, exponent, code == (1 << width) - 1, self.fraction_bits)

    def values(self, codes: Codes) -> NDArray[np.float64]:
        """The exact values; every scale fits in fp64."""
        parts = self.decode(codes)
        exponent = np.where(parts.significand == 0, 0, parts.exponent)
        values = np.ldexp(parts.significand.astype(np.float64), exponent - parts.fraction_bits)
        return np.where(parts.nan, np.nan, values)


# OCP MX: a power of two from 2^-127. UE4M3 is E4M3 without its sign, which is ignored (MMA-Sim).
UE8M0 = ScaleFormat("ue8m0", 8, 0, subnormals=False)
UE4M3 = ScaleFormat("ue4m3", 4, 3, subnormals=True)


@dataclass(frozen=True, slots=True)
class ScaledProduct:
    """D[M,N] = (A[M,K] scale_A) (B[N,K] scale_B)^T + C in f32, over one instruction's K. A scale is that of
    `block` elements."""

    a: Format
    b: Format
    scale: ScaleFormat
    block: int
    k: int

    def __post_init__(self) -> None:
        if self.k == 32:
            legal = {self.a, self.b} <= BYTE_FORMATS and (self.scale, self.block) == (UE8M0, 32)
        else:
            blocks = (16, 32) if self.scale is UE8M0 else (16,)
            legal = self.k == GROUP_K and {self.a, self.b} == {E2M1} and self.block in blocks
        if not legal:
            raise UnsupportedError(str(self))

    def __str__(self) -> str:
        return (
            f"tcgen05 product f32 += {self.a.name} x {self.b.name}, k {self.k}, "
            f"scales {self.scale.name} of {self.block}"
        )

    @property
    def scales(self) -> int:
        """Scales of a row."""
        return self.k // self.block

    @property
    def unscaled(self) -> Product:
        """The product without scales, if K = 32."""
        return Product(self.a, self.b, "f32", self.k, "tcgen05")


MultiplyScaled = Callable[[ScaledProduct, str, Codes, Codes, Codes, Codes, "Codes | None"], "NDArray[Any]"]
"""(product, model, a[M,K], scale_a[M,scales], b[N,K], scale_b[N,scales], c[M,N] or None) -> d[M,N], all as
bits: elements and scales in uint8, one element a byte, c and d in uint32. c None means no accumulator
input."""


def check_scaled(
    product: ScaledProduct, a: Codes, scale_a: Codes, b: Codes, scale_b: Codes, c: Codes | None
) -> None:
    """Check the shapes and types of the operands."""
    for name, codes, columns in (
        ("a", a, product.k),
        ("b", b, product.k),
        ("scale_a", scale_a, product.scales),
        ("scale_b", scale_b, product.scales),
    ):
        if codes.ndim != 2 or codes.shape[1] != columns or codes.dtype != np.uint8:
            raise ValueError(f"{product}: {name} is {codes.dtype} {codes.shape}, want uint8 [rows,{columns}]")
    if len(scale_a) != len(a) or len(scale_b) != len(b):
        raise ValueError(
            f"{product}: {len(scale_a)} and {len(scale_b)} rows of scales, {len(a)} and {len(b)}"
        )
    if c is not None and (c.shape != (len(a), len(b)) or c.dtype != np.uint32):
        raise ValueError(f"{product}: c is {c.dtype} {c.shape}, want uint32 of [M,N]")
