# SPDX-License-Identifier: Apache-2.0
"""The products that tensor-core instructions compute, and models of the hardware's arithmetic.

`Multiply` is the interface: a matrix product over the K of one instruction, on codes. `reference.multiply`
defines it in NumPy; `native.multiply` is the same compiled for this CPU. There are two models:

`exact`     Exact products, summed in fp64 one after another: C first (0 if there is none), then k = 0, 1,
            ...; the sum is rounded once to D, to nearest even. Overflow gives Inf, any NaN the canonical
            NaN. Every product of two operand formats is exact in fp64: only additions and the last step
            round.

`hardware`  Fused sums. One fused sum has C and `terms` products. A product is exact and its exponent is
            nominal: e_a + e_b, not renormalised. A subnormal has its format's smallest exponent, C its own
            exponent; zero terms are ignored. All terms are truncated toward zero at 2^(largest exponent -
            fraction_bits) and added exactly. The sum is normalised to D: toward zero for f32, to nearest
            even for f16. Subnormals are kept. A zero sum is +0. Inf and NaN follow the exact sum: Inf - Inf,
            0 * Inf and NaN operands give 0x7FFFFFFF (f16: 0x7FFF). A finite sum too large for D gives Inf.

The source of each number:

    unit      operands     terms             fraction bits  C      source
    mma.sync  f16, bf16    k (8 or 16)       25             fused  MMA-Sim `nv_ptx.mma`, Hopper and Blackwell
    mma.sync  tf32         k (4 or 8)        25             fused  MMA-Sim, as above
    mma.sync  e4m3, e5m2   k/2 at k%4 in     25, of f16     added  ptxas 13.0, for sm_90a and sm_100a alike:
                           {0,1}, then {2,3}                       see below
    tcgen05   f16, bf16    16                25             fused  MMA-Sim `nv_ptx.tcgen05mma`
    tcgen05   tf32         8                 25             fused  MMA-Sim, as above
    tcgen05   e4m3, e5m2,  32                25             fused  MMA-Sim, as above; e3m2 and e2m3, which it
              e3m2 e2m3                                            does not list, are assumed to be equal
              e2m1
    wgmma     f16, bf16    16                25             fused  MMA-Sim `nv_ptx.wgmma`; an H200. With byte
    wgmma     tf32         8                 25             fused  operands an f32 D keeps 13 of its 23
    wgmma     e4m3, e5m2   32                13             fused  fraction bits, truncated toward zero
    all       rounding of D, NaN pattern, +0                       MMA-Sim `arithmetic.nv_fused_dot_add`
    all       zero terms are ignored                               an H200; MMA-Sim gives a zero operand the
                                                                   exponent -126, which the GPU disproves

Every `mma.sync` row equals an H200 bit for bit on operands of 0 to 40 binades mixed with Inf, NaN, zeros and
subnormals, and on sums that test zeros, subnormal results and overflow (`tests/sim/silicon/corners.py`).
Every wgmma row equals it on such operands in ten combinations of types;
`tests/sim/wgmma/test_recorded_sums.py` lists the other rules that this excludes. The sums of `corners.py`
were also measured for wgmma with f16, bf16 and tf32 (`wgmma_corners.py`), not with bytes. For bytes three
cases are assumed to be as in mma.sync: a zero that MMA-Sim's exponent would make the largest term, a negative
sum truncated to zero, and subnormal sums. No tcgen05 row was compared with hardware.
Block-scaled products have a table of their own in `scaled`.

Integer products (`IntegerProduct`) are exact sums of 32 bits, in both models. A sum that does not fit keeps
its low 32 bits or, with saturation, becomes the nearest number that fits.

MMA-Sim: Xie et al., arXiv 2511.10909, repository microsoft/MMA-Sim, bit-equal to ten GPUs by its authors.
Khattak and Mikaitis, arXiv 2512.07004, model the same units (H100, B200) independently.

Neither sm_90a nor sm_100a has an fp8 `mma.sync` in hardware, and MMA-Sim lists none. ptxas expands it: it
unpacks bytes 0 and 1 of every register to f16, exactly, and multiplies them with accumulator 0; then it adds
the products of bytes 2 and 3; then it adds C by an ordinary FADD (HADD2 for f16 accumulators), which rounds
to nearest even. So K is split by k % 4, and an fp8 subnormal has the exponent of its f16.

Hopper's own fp8 unit, which only wgmma uses, keeps 13 fraction bits; tcgen05 and mma.sync keep all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.tensorcore.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    F16,
    F32,
    TF32,
    Codes,
    Format,
    IntegerFormat,
)

Unit = Literal["mma.sync", "tcgen05", "wgmma"]
DType = Literal["f32", "f16"]

BYTE_FORMATS = frozenset((E4M3, E5M2, E3M2, E2M3, E2M1))

# The allowed k of each unit: (unit, bits of operand storage) -> k.
_ALLOWED_K: dict[tuple[Unit, int], tuple[int, ...]] = {
    ("mma.sync", 32): (4, 8),
    ("mma.sync", 16): (8, 16),
    ("mma.sync", 8): (16, 32),
    ("tcgen05", 32): (8,),
    ("tcgen05", 16): (16,),
    ("tcgen05", 8): (32,),
    ("wgmma", 32): (8,),
    ("wgmma", 16): (16,),
    ("wgmma", 8): (32,),
}


class Model(StrEnum):
    """The arithmetic models by name."""

    HARDWARE = "hardware"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Product:
    """D[M,N] = A[M,K] B[N,K]^T + C over one instruction's K, on one unit."""

    a: Format
    b: Format
    d: DType
    k: int
    unit: Unit = "tcgen05"

    def __post_init__(self) -> None:
        formats = {self.a, self.b}
        kinds: tuple[frozenset[Format], ...] = (frozenset((F16, BF16)), frozenset((TF32,)), BYTE_FORMATS)
        if self.unit != "tcgen05":
            kinds = (frozenset((F16,)), frozenset((BF16,)), frozenset((TF32,)), frozenset((E4M3, E5M2)))
        allowed = _ALLOWED_K.get((self.unit, 8 * self.a.storage.itemsize), ())
        # Half accumulators exist for half and byte operands only (PTX ISA, tables of mma and tcgen05 kinds).
        half_ok = self.d == "f32" or formats <= BYTE_FORMATS or formats == {F16}
        if not any(formats <= kind for kind in kinds) or self.k not in allowed or not half_ok:
            raise UnsupportedError(str(self))

    def __str__(self) -> str:
        return f"{self.unit} product {self.d} += {self.a.name} x {self.b.name}, k {self.k}"

    @property
    def accumulator(self) -> Format:
        return F32 if self.d == "f32" else F16


@dataclass(frozen=True, slots=True)
class IntegerProduct:
    """D[M,N] = A[M,K] B[N,K]^T + C of integers of 8 bits, in s32; `saturate`: D is clamped."""

    a: IntegerFormat
    b: IntegerFormat
    k: int
    saturate: bool
    d: Literal["s32"] = "s32"

    def __str__(self) -> str:
        return f"product {self.d} += {self.a.name} x {self.b.name}, k {self.k}"


S32_MIN, S32_MAX = -(1 << 31), (1 << 31) - 1


def integer_result(product: IntegerProduct, sums: NDArray[np.int64], c: Codes | None) -> NDArray[np.uint32]:
    """D as bits, of the sums without C."""
    total = sums if c is None else sums + c.view(np.int32)
    if product.saturate:
        total = np.clip(total, S32_MIN, S32_MAX)
    return total.astype(np.int32).view(np.uint32)


@dataclass(frozen=True, slots=True)
class Rule:
    """How the `hardware` model computes a product: the k of each fused sum, in order, and the other
    parameters."""

    sums: tuple[tuple[int, ...], ...]
    fraction_bits: int
    widened: bool  # byte operands enter as f16
    c_fused: bool  # C is a term of the first sum; otherwise added at the end, rounded to nearest even
    cut: int = 0  # low fraction bits of an f32 D that are zero


FRACTION_BITS = 25
# Of the fp8 unit of Hopper.
BYTE_FRACTION_BITS = 13
# Below the exponent of any non-zero product, so that a zero is never the largest term.
ZERO_EXPONENT = -1024
NAN_BITS: dict[DType, int] = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}


def fused_sum_rule(product: Product) -> Rule:
    """The rule of the table above."""
    every = tuple(range(product.k))
    if product.unit == "mma.sync" and product.a in BYTE_FORMATS:
        low = tuple(k for k in every if k % 4 < 2)
        high = tuple(k for k in every if k % 4 >= 2)
        return Rule((low, high), FRACTION_BITS, widened=True, c_fused=False)
    if product.unit == "wgmma" and product.a in BYTE_FORMATS:
        cut = F32.fraction_bits - BYTE_FRACTION_BITS if product.d == "f32" else 0
        return Rule((every,), BYTE_FRACTION_BITS, widened=False, c_fused=True, cut=cut)
    return Rule((every,), FRACTION_BITS, widened=False, c_fused=True)


class Multiply(Protocol):
    """(product, model, a[M,K], b[N,K], c[M,N] or None) -> d[M,N], all as bits: a and b in the format's
    storage type, c and d uint32 for f32 and s32, uint16 for f16. M and N are any, K is `product.k`. c None
    means no accumulator input (tcgen05 enable-input-d false). To negate A or B the caller flips the
    operand's sign bits. The result is written to `out` if that is given, which may be c itself."""

    def __call__(
        self,
        product: Product | IntegerProduct,
        model: str,
        a: Codes,
        b: Codes,
        c: Codes | None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]: ...


def written(result: NDArray[Any], out: NDArray[Any] | None) -> NDArray[Any]:
    """The result of a product, in `out` if that is given."""
    if out is None:
        return result
    out[...] = result
    return out


def check_operands(
    product: Product, model: str, a: Codes, b: Codes, c: Codes | None, out: Codes | None = None
) -> Model:
    """Check the shapes and types of the operands and return the model of this name."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != product.k or b.shape[1] != product.k:
        raise ValueError(
            f"{product}: a is {a.shape}, b is {b.shape}, want [M,{product.k}] and [N,{product.k}]"
        )
    if a.dtype != product.a.storage or b.dtype != product.b.storage:
        raise ValueError(f"{product}: a holds {a.dtype}, b {b.dtype}")
    accumulator = product.accumulator
    for name, matrix in (("c", c), ("out", out)):
        if matrix is not None and (
            matrix.shape != (a.shape[0], b.shape[0]) or matrix.dtype != accumulator.storage
        ):
            raise ValueError(
                f"{product}: {name} is {matrix.dtype} {matrix.shape}, want {accumulator.storage} of [M,N]"
            )
    return named_model(model)


def named_model(model: str) -> Model:
    """The arithmetic model of this name."""
    try:
        return Model(model)
    except ValueError:
        names = ", ".join(Model)
        raise ValueError(f"no arithmetic model {model!r}; there are {names}") from None


def canonical_nan(product: Product) -> np.unsignedinteger[Any]:
    """The only NaN that a tensor core produces."""
    nan: np.unsignedinteger[Any] = product.accumulator.storage.type(NAN_BITS[product.d])
    return nan
