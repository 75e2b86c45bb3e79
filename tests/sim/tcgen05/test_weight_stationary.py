# SPDX-License-Identifier: Apache-2.0
"""tcgen05.mma.ws: layouts E and G of D (PTX ISA 9.7.16.10.5; CUTLASS, `tmem_frg_ws`), A of each bank, and the
zero-column mask with the examples of PTX ISA 9.7.16.4.3."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import KernelFault, UnsupportedError
from gdnbench.sim.machine.tcgen05_zero_columns import zero_columns
from tests.messages import wording
from tests.sim.tcgen05.cute_layouts import shared_layout
from tests.sim.tcgen05.products import Operand, codes, instruction_descriptor
from tests.sim.tcgen05.tensor_machine import ONE, Machine

A_AT, B_AT, COLUMN, A_COLUMN = 16 * 1024, 64 * 1024, 32, 320


def issue(
    machine: Machine, d: int, a: int, b: int, idesc: int, *, a_in_tmem: bool = False,
    accumulate: bool = False, mask: int | None = None, suffix: str = "", kind: str = "f16",
) -> None:  # fmt: skip
    source, tail = "[%a]" if a_in_tmem else "%da", "" if mask is None else ", %dm"
    text = f"tcgen05.mma.ws.cta_group::1.kind::{kind}{suffix} [%r], {source}, %db, %i, %p{tail};"
    operands = {"a": a} if a_in_tmem else {"da": a}
    if mask is not None:
        operands["dm"] = mask
    machine.issue(text, lanes=ONE, r=d, db=b, i=idesc, p=int(accumulate), **operands)


def banks_of(machine: Machine, m: int, n: int) -> np.ndarray:
    """D [m, n]: column c of bank c / (n m / 128) is in lanes m bank + row."""
    width = n * m // 128
    words = machine.cta.tmem.cells[:, COLUMN : COLUMN + width].view(np.float32)
    return words.reshape(128 // m, m, width).transpose(1, 0, 2).reshape(m, n)


def operands(
    m: int, n: int, b_mn: bool = False, columns: int = 0
) -> tuple[Machine, np.ndarray, np.ndarray, Operand]:
    rng = np.random.default_rng([m, n])
    a = rng.integers(-3, 4, (m, 32)).astype(np.float32)
    b = rng.integers(-3, 4, (n + columns, 32)).astype(np.float32)
    machine = Machine()
    machine.alloc(512)
    right = Operand(
        shared_layout("SW64" if not b_mn else "SW128", "bf16", b_mn, n + columns, 32), B_AT, "bf16"
    )
    right.put(machine, b)
    return machine, a, b, right


SIZES = [(m, n) for m in (32, 64, 128) for n in (64, 128, 256)]


@pytest.mark.parametrize(("m", "n"), SIZES)
@pytest.mark.parametrize("b_mn", [False, True])
def test_a_in_shared_memory(m: int, n: int, b_mn: bool) -> None:
    machine, a, b, right = operands(m, n, b_mn)
    left = Operand(shared_layout("SW64", "bf16", False, m, 32), A_AT, "bf16")
    left.put(machine, a)
    idesc = instruction_descriptor("bf16", "bf16", m, n, b_mn=b_mn)
    for block in range(2):
        at = left.descriptor(16 * block), right.descriptor(16 * block)
        issue(machine, COLUMN, *at, idesc, accumulate=block > 0, suffix=".collector::b3::fill")
    machine.finish()
    np.testing.assert_array_equal(banks_of(machine, m, n), a @ b.T)
    written = np.zeros((128, 512), bool)
    written[:, COLUMN : COLUMN + n * m // 128] = True
    np.testing.assert_array_equal(machine.cta.tmem.valid, written)


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_every_bank_reads_an_a_of_its_own(m: int, n: int) -> None:
    """Two or four products, each of a part of the columns, in one instruction."""
    machine, _, b, right = operands(m, n)
    banks, width = 128 // m, n * m // 128
    a = np.random.default_rng(7).integers(-3, 4, (banks, m, 32)).astype(np.float32)
    image = codes("bf16", a.reshape(128, 32)).view(np.uint32)
    machine.cta.tmem.cells[:, A_COLUMN : A_COLUMN + 16] = image
    machine.cta.tmem.valid[:, A_COLUMN : A_COLUMN + 16] = True
    idesc = instruction_descriptor("bf16", "bf16", m, n)
    for block in range(2):
        at = A_COLUMN + 8 * block, right.descriptor(16 * block)
        issue(machine, COLUMN, *at, idesc, accumulate=block > 0, a_in_tmem=True)
    machine.finish()
    want = np.concatenate([a[i] @ b[i * width : (i + 1) * width].T for i in range(banks)], axis=1)
    np.testing.assert_array_equal(banks_of(machine, m, n), want)


def mask_descriptor(
    starts: tuple[int, ...], firsts: tuple[int, ...], skip: int, use: int, shift: int = 0, *, on: bool = True
) -> int:
    """Table 45; the counts of bank 0 first."""
    bits = sum(start << 8 * bank for bank, start in enumerate(starts))
    bits |= sum(first << 32 + bank for bank, first in enumerate(firsts))
    return bits | int(on) << 39 | skip << 40 | use << 48 | shift << 56


# M, descriptor, the lowest bits of each bank's mask as the ISA's examples print them.
EXAMPLES = [
    (128, mask_descriptor((0, 0, 0, 0), (0, 0, 0, 0), 2, 3), ["11100001110000"]),
    (64, mask_descriptor((0, 0), (1, 0), 2, 3), ["11100001110000111", "00001110000" + "1110000"]),
    (
        32,
        mask_descriptor((0, 1, 2, 1), (1, 1, 0, 0), 2, 3, 2),
        ["00001110000111", "0000111000011", "111000011100", "1110000111000"],
    ),
]


@pytest.mark.parametrize(("m", "bits", "printed"), EXAMPLES)
def test_masks_of_the_isa(m: int, bits: int, printed: list[str]) -> None:
    zeros = zero_columns(bits, m, 128)
    assert zeros is not None
    for bank, text in zip(zeros.reshape(128 // m, -1), printed, strict=True):
        assert "".join(str(int(zero)) for zero in bank[: len(text)])[::-1] == text
    assert zero_columns(mask_descriptor((0,), (0,), 4, 3, on=False), 128, 128) is None


@pytest.mark.parametrize("b_mn", [False, True])
@pytest.mark.parametrize(("m", "bits", "printed"), EXAMPLES)
def test_a_product_with_a_mask(m: int, bits: int, printed: list[str], b_mn: bool) -> None:
    shift = bits >> 56
    machine, a, b, right = operands(m, 128, b_mn, 64 if b_mn else 8)
    left = Operand(shared_layout("SW64", "bf16", False, m, 32), A_AT, "bf16")
    left.put(machine, a)
    idesc = instruction_descriptor("bf16", "bf16", m, 128, b_mn=b_mn)
    issue(machine, COLUMN, left.descriptor(0), right.descriptor(0), idesc, mask=bits)
    machine.finish()
    zeros = zero_columns(bits, m, 128)
    want = a[:, :16] @ b[shift : shift + 128, :16].T
    want[:, zeros] = 0
    np.testing.assert_array_equal(banks_of(machine, m, 128), want)


def test_illegal_and_unknown() -> None:
    machine = Machine()
    machine.alloc(512)
    legal = 1 << 46
    idesc = instruction_descriptor("bf16", "bf16", 64, 64)
    for m, n, what in ((16, 64, "M = 16"), (64, 48, "N = 48"), (64, 96, "N = 96")):
        with pytest.raises(KernelFault, match=what):
            issue(machine, 0, legal, legal, instruction_descriptor("bf16", "bf16", m, n))
    with pytest.raises(KernelFault, match=wording("sim.machine.column-shift", shift=33, m=64, most=32)):
        issue(machine, 0, legal, legal, idesc, mask=33 << 56)
    with pytest.raises(KernelFault, match=wording("sim.machine.column-mask-bits")):
        issue(machine, 0, legal, legal, idesc, mask=1 << 36)
    with pytest.raises(UnsupportedError, match="start count 4"):
        issue(machine, 0, legal, legal, idesc, mask=mask_descriptor((4,), (0,), 2, 3))
    with pytest.raises(KernelFault, match="lane 16"):
        issue(machine, 16 << 16, legal, legal, idesc)
