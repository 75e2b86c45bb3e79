# SPDX-License-Identifier: Apache-2.0
"""tcgen05.mma.kind::i8: exact sums of products of 8-bit integers wrap or saturate (PTX ISA, table 42)."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import KernelFault, UnsupportedError
from gdnbench.sim.tensorcore import native, reference
from gdnbench.sim.tensorcore.formats import INTEGER_FORMATS
from gdnbench.sim.tensorcore.product import IntegerProduct
from tests.messages import wording
from tests.sim.machine.bench import instruction
from tests.sim.tcgen05.cute_layouts import shared_layout
from tests.sim.tcgen05.products import Operand, put_tmem, result
from tests.sim.tcgen05.tensor_machine import Machine

TYPES = {"u8": np.uint8, "s8": np.int8}
LIMIT = 1 << 31
DEPTH = 128  # bytes of K: a row of a 128-byte swizzle


def descriptor(
    a: str, b: str, m: int, n: int, *, saturate: bool = False, a_mn: bool = False, b_mn: bool = False
) -> int:
    """Table 42: s32 is 2, unsigned 0, signed 1."""
    return (
        int(saturate) << 3 | 2 << 4 | ("u8", "s8").index(a) << 7 | ("u8", "s8").index(b) << 10
        | int(a_mn) << 15 | int(b_mn) << 16 | n >> 3 << 17 | m >> 4 << 24
    )  # fmt: skip


def draw(rng: np.random.Generator, name: str, *shape: int) -> np.ndarray:
    info = np.iinfo(TYPES[name])
    return rng.integers(info.min, info.max + 1, shape)


@pytest.mark.parametrize(("a", "b"), [("u8", "u8"), ("s8", "u8"), ("u8", "s8"), ("s8", "s8")])
@pytest.mark.parametrize(
    ("m", "n", "a_layout", "b_layout"),
    [
        (128, 48, ("SW128", False), ("SW128", False)),
        (64, 256, ("SW64", True), ("SW128", True)),
        (128, 24, ("INTER", False), ("SW32", False)),
        (64, 32, None, ("SW128", False)),
    ],
)
def test_products(
    a: str, b: str, m: int, n: int, a_layout: tuple[str, bool] | None, b_layout: tuple[str, bool]
) -> None:
    rng = np.random.default_rng([m, n])
    left, right = draw(rng, a, m, DEPTH), draw(rng, b, n, DEPTH)
    machine = Machine()
    machine.alloc(512)
    b_at = Operand(shared_layout(b_layout[0], "e4m3", b_layout[1], n, DEPTH), 96 * 1024, b)
    b_at.put(machine, right)
    a_at = None
    if a_layout is None:
        put_tmem(machine, 320, a, m, left)
    else:
        a_at = Operand(shared_layout(a_layout[0], "e4m3", a_layout[1], m, DEPTH), 16 * 1024, a)
        a_at.put(machine, left)
    idesc = descriptor(a, b, m, n, a_mn=a_layout is not None and a_layout[1], b_mn=b_layout[1])
    for block in range(DEPTH // 32):
        source = 320 + 8 * block if a_at is None else a_at.descriptor(32 * block)
        machine.mma(
            "i8", 40, source, b_at.descriptor(32 * block), idesc, a_in_tmem=a_at is None, accumulate=block > 0
        )
    machine.finish()
    np.testing.assert_array_equal(result(machine, 40, m, n).view(np.int32), left @ right.T)


@pytest.mark.parametrize("multiply", [reference.multiply, native.multiply], ids=["reference", "native"])
def test_sums_wrap_or_saturate(multiply: object) -> None:
    rng = np.random.default_rng(4)
    for a, b in (("u8", "u8"), ("s8", "s8"), ("s8", "u8")):
        left, right = draw(rng, a, 40, 32), draw(rng, b, 24, 32)
        left[0], right[0] = np.iinfo(TYPES[a]).max, np.iinfo(TYPES[b]).max
        addend = rng.choice([-LIMIT, -LIMIT + 1000, LIMIT - 1, LIMIT - 1000, 0], (40, 24))
        exact = left @ right.T + addend
        codes = [part.astype(TYPES[name]).view(np.uint8) for part, name in ((left, a), (right, b))]
        for saturate in (False, True):
            product = IntegerProduct(INTEGER_FORMATS[a], INTEGER_FORMATS[b], 32, saturate)
            found = multiply(product, "hardware", *codes, addend.astype(np.int32).view(np.uint32))  # type: ignore[operator]
            want = np.clip(exact, -LIMIT, LIMIT - 1) if saturate else (exact + LIMIT) % (2 * LIMIT) - LIMIT
            np.testing.assert_array_equal(found.view(np.int32), want)
        without = multiply(product, "exact", *codes, None)  # type: ignore[operator]
        np.testing.assert_array_equal(without.view(np.int32), left @ right.T)


@pytest.mark.parametrize(
    ("bits", "what"),
    [(1 << 13, "negate"), (1 << 14, "negate"), (1 << 4, "type 3 of D"), (2 << 7, "type 2 of A")],
)
def test_illegal_descriptors(bits: int, what: str) -> None:
    machine = Machine()
    machine.alloc(64)
    with pytest.raises(KernelFault, match=what):
        machine.mma("i8", 0, 1 << 46, 1 << 46, descriptor("u8", "u8", 128, 64) | bits)
    with pytest.raises(KernelFault, match="multiples of 16"):
        machine.mma("i8", 0, 1 << 46, 1 << 46, descriptor("u8", "u8", 128, 40))


def test_the_b300_has_none() -> None:
    text = "tcgen05.mma.cta_group::1.kind::i8 [%r], %da, %db, %i, %p"
    assert instruction(text) is not None
    from gdnbench.sim.ptx.parser import parse

    module = (
        ".version 8.8\n.target sm_103a\n.address_size 64\n.entry k() {\n.reg .b32 %r, %i; .reg .b64 %da, %db;"
        f" .reg .pred %p;\n{text};\nret;\n}}\n"
    )
    refused = wording("sim.ptx.target-refused", op="tcgen05.mma.kind::i8", target="sm_103a")
    with pytest.raises(UnsupportedError, match=refused):
        parse(module)
