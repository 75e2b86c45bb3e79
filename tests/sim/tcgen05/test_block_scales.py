# SPDX-License-Identifier: Apache-2.0
"""Block-scaled tcgen05.mma: types, layouts, scale vectors and faults, against exact products in fp64.

Elements are small numbers and scales powers of two, or numbers of few bits, so that every sum is exact.
Layouts of scales in shared memory are CuTe's (`BlockScaledBasicChunk`), and tcgen05.cp brings them to TMEM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from cutlass.utils.blockscaled_layout import BlockScaledBasicChunk

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from tests.messages import wording
from tests.sim.tcgen05.cute_layouts import evaluate, on_host, shared_layout
from tests.sim.tcgen05.products import LAYOUT_CODE, image, matrix_descriptor
from tests.sim.tcgen05.tensor_machine import ONE, Machine
from tests.subset import quick

M = 128
A_AT, B_AT = 16 * 1024, 64 * 1024
SFA_AT, SFB_AT = 128 * 1024, 132 * 1024
# TMEM columns of D, A and the scales.
D_COLUMN, A_COLUMN, SFA_COLUMN, SFB_COLUMN = 0, 256, 320, 328

NUMPY = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
    "ue4m3": ml_dtypes.float8_e4m3fn,
}
BITS = {"e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4}
TYPE_CODE = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}  # of mxf8f6f4
STEP = {"mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
# Where a code lies in a byte of TMEM (CUTLASS, cp_narrow_a_to_tmem_mma.py).
CONTAINER = {8: 0, 6: 1, 4: 2}


@dataclass(frozen=True)
class Kind:
    """A spelling: `suffix` is the scale vector's."""

    name: str
    a: str
    b: str
    suffix: str
    block: int
    scale: str = "ue8m0"

    def __str__(self) -> str:
        return f"{self.name}.{self.suffix} {self.a} {self.b} {self.scale}"

    @property
    def step(self) -> int:
        return STEP[self.name]

    @property
    def depth(self) -> int:
        """K of the four scales of a row in a tile."""
        return 4 * self.block

    def bytes(self, name: str) -> int:
        """Bytes of a row in shared memory."""
        return self.depth // 2 if self.step == 64 else self.depth


KINDS = (
    *(Kind("mxf8f6f4", name, name, "scale_vec::1X", 32) for name in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")),
    Kind("mxf8f6f4", "e4m3", "e2m1", "block32", 32),
    Kind("mxf8f6f4", "e3m2", "e5m2", "", 32),
    Kind("mxf4", "e2m1", "e2m1", "", 32),
    Kind("mxf4", "e2m1", "e2m1", "scale_vec::2X", 32),
    Kind("mxf4nvf4", "e2m1", "e2m1", "block32", 32),
    Kind("mxf4nvf4", "e2m1", "e2m1", "scale_vec::4X", 16),
    Kind("mxf4nvf4", "e2m1", "e2m1", "block16", 16, "ue4m3"),
)
BYTES, NVFP4 = KINDS[0], KINDS[-1]


def descriptor(
    kind: Kind, n: int, sfa: int = 0, sfb: int = 0, *, a_mn: bool = False, b_mn: bool = False, negate: int = 0
) -> int:
    """Tables 43 and 44 of PTX ISA 9.0, section 9.7.16.4.2."""
    types = [TYPE_CODE[kind.a], TYPE_CODE[kind.b]] if kind.name == "mxf8f6f4" else [1, 1]
    return (
        sfb << 4 | types[0] << 7 | types[1] << 10 | negate << 13 | int(a_mn) << 15 | int(b_mn) << 16
        | n >> 3 << 17 | int(kind.scale == "ue8m0") << 23 | M >> 7 << 27 | sfa << 29
    )  # fmt: skip


def numbers(rng: np.random.Generator, name: str, rows: int, depth: int) -> np.ndarray:
    """Numbers that `name` holds exactly."""
    return rng.choice([-3.0, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3], (rows, depth))


def scales(rng: np.random.Generator, kind: Kind, rows: int) -> np.ndarray:
    return rng.choice([0.25, 0.5, 1, 2, 4] if kind.scale == "ue8m0" else [0, 0.5, 0.875, 1.25, 3], (rows, 4))


def codes(name: str, values: np.ndarray) -> np.ndarray:
    return values.astype(NUMPY[name]).view(np.uint8)


def packed(kind: Kind, name: str, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of rows in shared memory, and which of them are elements (9.7.16.10.4.4 and .6)."""
    bits = BITS[name]
    if kind.step == 64:
        data = elements[:, ::2] | elements[:, 1::2] << 4
        return data, np.ones(data.shape, bool)
    stream = np.unpackbits(elements[..., None], axis=-1, bitorder="little")[..., :bits]
    chunks = np.packbits(stream.reshape(len(elements), -1, 16 * bits), axis=-1, bitorder="little")
    padding = np.full((*chunks.shape[:2], 16 - 2 * bits), 0xA5, np.uint8)
    data = np.concatenate((chunks, padding), axis=-1).reshape(len(elements), -1)
    return data, np.arange(data.shape[1])[None, :] % 16 < np.full((len(data), 1), 2 * bits)


@cache
def chunk_layout(block: int) -> np.ndarray:
    """[row, scale] -> byte of a tile of 128 rows, by CuTe."""

    def build() -> tuple:
        layout = BlockScaledBasicChunk(block).layout
        return layout.shape, layout.stride

    offsets = evaluate(*on_host(build))
    return offsets[:, ::block]


class Setup:
    """A CTA with operands and scales in place."""

    def __init__(self, kind: Kind, schedule: str = "late", mma: str = "hardware") -> None:
        self.kind = kind
        self.machine = Machine(schedule=schedule, mma=mma)
        self.machine.alloc(512)

    def put_shared(self, base: int, name: str, values: np.ndarray, layout: str, mn: bool = False) -> object:
        """An operand into shared memory. Only its elements count as written."""
        data, used = packed(self.kind, name, codes(name, values))
        placed = shared_layout(layout, "e4m3", mn, len(data), data.shape[1])
        address = placed.addresses(base)[..., 0]
        self.machine.cta.shared.bytes[address] = data
        self.machine.cta.shared.valid[address] = used

        def at(block: int) -> int:
            start = base + int(placed.offset[0, 32 * block])
            return matrix_descriptor(start, *placed.strides(), LAYOUT_CODE[placed.swizzle])

        return at

    def put_tmem(self, values: np.ndarray) -> None:
        """A into TMEM, a row in each lane."""
        elements, bits = codes(self.kind.a, values), BITS[self.kind.a]
        data = packed(self.kind, self.kind.a, elements)[0] if self.kind.step == 64 else elements
        if self.kind.step == 32:
            noise = np.uint8(0xFF & ~((1 << bits) - 1 << CONTAINER[bits]))
            data = data << np.uint8(CONTAINER[bits]) | noise
        words = np.ascontiguousarray(data).view(np.uint32)
        for warp in range(4):
            for at in range(0, words.shape[1], 8):
                rows = words[32 * warp : 32 * warp + 32, at : at + 8]
                self.machine.store("32x32b", 8, A_COLUMN + at, rows, warp=warp)

    def put_scales(self, base: int, column: int, values: np.ndarray) -> None:
        """Tiles of 128 rows through shared memory and tcgen05.cp; rows past the last have other scales."""
        for tile in range(-(-len(values) // 128)):
            rows = np.full((128, 4), 0x5A, np.uint8)
            part = values[128 * tile : 128 * tile + 128]
            rows[: len(part)] = codes(self.kind.scale, part)
            data = np.zeros(512, np.uint8)
            data[chunk_layout(self.kind.block)] = rows
            self.machine.write(base + 512 * tile, data)
            source = matrix_descriptor(base + 512 * tile, 16, 128, 0)
            self.machine.issue(
                "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r], %d;", lanes=ONE, r=column + 4 * tile, d=source
            )

    def mma(
        self, a: int, b: int, idesc: int, *, sfa: int = SFA_COLUMN, sfb: int = SFB_COLUMN, d: int = D_COLUMN,
        in_tmem: bool = False, accumulate: bool = False, suffix: str | None = None,
    ) -> None:  # fmt: skip
        vector = self.kind.suffix if suffix is None else suffix
        spelling = f"tcgen05.mma.cta_group::1.kind::{self.kind.name}.block_scale{'.' * bool(vector)}{vector}"
        source, operand = ("[%a]", {"a": a}) if in_tmem else ("%da", {"da": a})
        self.machine.issue(
            f"{spelling} [%r], {source}, %db, %i, [%s], [%t], %p;", lanes=ONE, r=d, db=b, i=idesc, s=sfa,
            t=sfb, p=int(accumulate), **operand,
        )  # fmt: skip


def multiply(
    kind: Kind, n: int, layout: str, *, in_tmem: bool = False, a_mn: bool = False, b_mn: bool = False,
    schedule: str = "late", mma: str = "hardware", upper: bool = False, negate: int = 0,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(what the machine gives, what NumPy gives) for the K of four scales; each product uses the next."""
    rng = np.random.default_rng([n, in_tmem, len(layout)])
    a, b = numbers(rng, kind.a, M, kind.depth), numbers(rng, kind.b, n, kind.depth)
    scale_a, scale_b = scales(rng, kind, M), scales(rng, kind, n)
    setup = Setup(kind, schedule, mma)
    setup.put_scales(SFA_AT, SFA_COLUMN, scale_a)
    setup.put_scales(SFB_AT, SFB_COLUMN, scale_b)
    right = setup.put_shared(B_AT, kind.b, b, layout, b_mn)
    if in_tmem:
        setup.put_tmem(a)
    else:
        left = setup.put_shared(A_AT, kind.a, a, layout, a_mn)
    for index in range(kind.depth // kind.step):
        byte = index * kind.step // kind.block
        top = byte << 30 if upper else 0
        setup.mma(
            A_COLUMN + 8 * index if in_tmem else left(index),
            right(index),
            descriptor(kind, n, byte, byte, a_mn=a_mn, b_mn=b_mn, negate=negate),
            sfa=SFA_COLUMN | top,
            sfb=SFB_COLUMN | top,
            in_tmem=in_tmem,
            accumulate=index > 0,
        )
    setup.machine.finish()
    got = image(setup.machine, D_COLUMN, n).view(np.float32)
    sign = [-1.0 if negate >> i & 1 else 1.0 for i in (0, 1)]
    scaled = [
        s * x * np.repeat(y, kind.block, axis=1)
        for s, x, y in zip(sign, (a, b), (scale_a, scale_b), strict=True)
    ]
    return got, scaled[0] @ scaled[1].T


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_operands_in_shared_memory(kind: Kind) -> None:
    got, want = multiply(kind, 48, "SW128" if kind.bytes(kind.a) == 128 else "SW32")
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", quick(KINDS, 0, 3, 4, 11, ids=map(str, KINDS)))
def test_a_in_tensor_memory(kind: Kind) -> None:
    got, want = multiply(kind, 16, "SW32", in_tmem=True)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("n", quick(range(8, 257, 8), 4, 23))
@pytest.mark.parametrize("kind", [BYTES, NVFP4], ids=str)
def test_every_n(kind: Kind, n: int) -> None:
    got, want = multiply(kind, n, "INTER")
    np.testing.assert_array_equal(got, want)


def test_transposed_operands() -> None:
    got, want = multiply(BYTES, 64, "SW64", a_mn=True, b_mn=True)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "options", [{"schedule": "early"}, {"schedule": "random:3"}, {"mma": "exact"}], ids=str
)
@pytest.mark.parametrize("kind", [BYTES, NVFP4], ids=str)
def test_schedules_and_models_agree(kind: Kind, options: dict[str, str]) -> None:
    got, want = multiply(kind, 24, "SW32", **options)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", [BYTES, KINDS[8]], ids=str)
def test_the_scale_id_in_the_address(kind: Kind) -> None:
    """CUTLASS writes the id to the address's upper bits as well (`make_runtime_instr_desc_block_scaled`)."""
    got, want = multiply(kind, 16, "SW32", upper=True)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("negate", [1, 2])
@pytest.mark.parametrize("kind", [BYTES, KINDS[4], NVFP4], ids=str)
def test_negation(kind: Kind, negate: int) -> None:
    got, want = multiply(kind, 8, "SW32", negate=negate)
    np.testing.assert_array_equal(got, want)


def ready(kind: Kind, n: int = 16) -> tuple[Setup, int, int]:
    """Ones everywhere, and descriptors of A and B."""
    setup = Setup(kind)
    setup.put_scales(SFA_AT, SFA_COLUMN, np.ones((M, 4)))
    setup.put_scales(SFB_AT, SFB_COLUMN, np.ones((n, 4)))
    left = setup.put_shared(A_AT, kind.a, np.ones((M, kind.depth)), "SW32")
    right = setup.put_shared(B_AT, kind.b, np.ones((n, kind.depth)), "SW32")
    setup.machine.finish()
    return setup, left(0), right(0)


ILLEGAL_BITS = {
    "id 1 of A, two scales": (KINDS[8], 1 << 29, wording("sim.machine.scale-id"), 2 << 29),
    "id 3 of B, two scales": (KINDS[8], 3 << 4, wording("sim.machine.scale-id"), 2 << 4),
    "id 2 of A, four scales": (NVFP4, 2 << 29, wording("sim.machine.scale-id"), 0),
    "K of 96": (NVFP4, 1 << 31, wording("sim.machine.scaled-k96"), 0),
    "M of 64, as other kinds write it": (BYTES, 64 >> 4 << 24, wording("sim.machine.scaled-zero-bits"), 0),
    "a type of f16": (BYTES, 2 << 7, wording("sim.machine.type-unknown"), 1 << 7),
    "ue4m3 for mxf4": (KINDS[8], -(1 << 23), wording("sim.machine.scaled-ue4m3"), 0),
    "ue4m3 for blocks of 32": (KINDS[9], -(1 << 23), wording("sim.machine.scaled-ue4m3"), 0),
    "M of 256": (BYTES, 1 << 27, wording("sim.machine.scaled-m"), 0),
    "N of 0": (BYTES, -(16 >> 3 << 17), wording("sim.machine.columns-step"), 0),
    "transposed e2m1": (NVFP4, 1 << 15, wording("sim.machine.mn-major-narrow"), 0),
}


@pytest.mark.parametrize(("kind", "change", "message", "twin"), ILLEGAL_BITS.values(), ids=ILLEGAL_BITS)
def test_illegal_descriptors(kind: Kind, change: int, message: str, twin: int) -> None:
    setup, a, b = ready(kind)
    right = descriptor(kind, 16)
    with pytest.raises(KernelFault, match=message) as caught:
        setup.mma(a, b, right + change)
    assert caught.value.kind is FaultKind.DESCRIPTOR
    setup.mma(a, b, right + twin)
    setup.machine.finish()


def test_a_depth_of_96_is_refused() -> None:
    """Table 44, bit 31: sm_103a has it; for sm_100a it is illegal (`ILLEGAL_BITS`)."""
    setup, a, b = ready(NVFP4)
    setup.machine.launch.module = replace(setup.machine.launch.module, target="sm_103a")
    with pytest.raises(UnsupportedError, match="K = 96"):
        setup.mma(a, b, descriptor(NVFP4, 16) | 1 << 31)


def test_sparse_products_are_refused() -> None:
    setup, a, b = ready(BYTES)
    with pytest.raises(UnsupportedError, match="sparse"):
        setup.mma(a, b, descriptor(BYTES, 16) | 1 << 2)


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [(BYTES, "scale_vec::2X"), (KINDS[7], "scale_vec::4X"), (KINDS[7], "block16"), (NVFP4, "")],
    ids=str,
)
def test_vectors_that_a_kind_does_not_have(kind: Kind, suffix: str) -> None:
    setup, a, b = ready(kind)
    with pytest.raises(UnsupportedError, match=wording("sim.machine.scaled-vector")):
        setup.mma(a, b, descriptor(kind, 16), suffix=suffix)


ILLEGAL_ADDRESSES = {
    "scales from lane 32": (
        {"sfa": 32 << 16 | SFA_COLUMN},
        FaultKind.MISALIGNED,
        wording("sim.machine.scales-lane"),
    ),
    "an address that names another byte": (
        {"sfb": 2 << 30 | SFB_COLUMN},
        FaultKind.DESCRIPTOR,
        wording("sim.machine.scales-byte"),
    ),
    "scales past the last column": ({"sfa": 510}, FaultKind.TMEM_ACCESS, wording("sim.machine.tmem-outside")),
    "D from lane 16": ({"d": 16 << 16}, FaultKind.MISALIGNED, wording("sim.machine.d-lane")),
}


@pytest.mark.parametrize(("change", "fault", "message"), ILLEGAL_ADDRESSES.values(), ids=ILLEGAL_ADDRESSES)
def test_illegal_addresses(change: dict[str, int], fault: FaultKind, message: str) -> None:
    setup, a, b = ready(BYTES)
    with pytest.raises(KernelFault, match=message) as caught:
        setup.mma(a, b, descriptor(BYTES, 16), **change)
    assert caught.value.kind is fault


def test_scales_of_columns_that_were_never_written() -> None:
    """32 columns of B have scales, in one column of TMEM; a product of 40 reads the next column too."""
    setup, a, _ = ready(BYTES)
    right = setup.put_shared(B_AT, "e4m3", np.ones((40, 128)), "SW32")
    setup.machine.cta.tmem.valid[:, SFB_COLUMN + 1 :] = False
    setup.mma(a, right(0), descriptor(BYTES, 32))
    setup.machine.finish()
    setup.mma(a, right(0), descriptor(BYTES, 40))
    with pytest.raises(KernelFault, match=wording("sim.machine.scales-unwritten")) as caught:
        setup.machine.finish()
    assert caught.value.kind is FaultKind.UNINITIALISED


def test_scales_that_one_partition_lacks() -> None:
    """All four partitions of 32 lanes need them (9.7.16.10.7). Lane 16 has the scale of no column of B."""
    setup, a, b = ready(BYTES)
    setup.machine.cta.tmem.cells[64 + 16, SFB_COLUMN] ^= 1
    setup.mma(a, b, descriptor(BYTES, 16))
    setup.machine.finish()
    setup.machine.cta.tmem.cells[64 + 15, SFB_COLUMN] ^= 1
    setup.mma(a, b, descriptor(BYTES, 16))
    with pytest.raises(KernelFault, match=wording("sim.machine.scales-partition")) as caught:
        setup.machine.finish()
    assert caught.value.kind is FaultKind.DESCRIPTOR
