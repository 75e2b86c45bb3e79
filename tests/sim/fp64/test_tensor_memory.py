# SPDX-License-Identifier: Apache-2.0
"""Products of tcgen05.mma in double: operands whose bits are the rounded numbers and whose shadows are not.

Operands are random doubles, K up to 128. The expected product is NumPy's of the doubles. Both sum at most 128
products of numbers below 4 in another order: 128 * 2^-53 * 128 * 4 < 1e-11. The product of the bits is off by
more than 1e-3 with 8 bits of significand, 1e-4 with tf32's eleven.
"""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.shadow_cells import SHAPES, make_cells
from gdnbench.sim.machine.tmem import SHADOW_TYPE
from tests.sim.tcgen05.cute_layouts import accumulator_layout, shared_layout, tmem_operand_layout
from tests.sim.tcgen05.products import KIND, STEP, Operand, codes, instruction_descriptor, put_tmem, result
from tests.sim.tcgen05.tensor_machine import Machine

A_AT, B_AT, COLUMN, A_COLUMN = 16 * 1024, 96 * 1024, 40, 320


class ShadowedMachine(Machine):
    """A machine whose memories have shadows."""

    def made(self) -> Cta:
        self.launch.shadowed = True
        return super().made()


def put(machine: Machine, operand: Operand, values: np.ndarray) -> None:
    """An operand with the doubles as its shadows."""
    operand.put(machine, values)
    data = codes(operand.type, values)[..., None].view(np.uint8)
    shadows = machine.cta.shared.shadows
    assert shadows is not None
    shadows[operand.layout.addresses(operand.base)] = make_cells(
        values[..., None], data, SHAPES[operand.type]
    )


def put_shadows_in_tmem(machine: Machine, name: str, m: int, values: np.ndarray) -> None:
    """The shadows of A where `put_tmem` has put its bits."""
    data = codes(name, values)
    size = data.itemsize
    cells = make_cells(values[..., None], data[..., None].view(np.uint8), SHAPES[name])
    lanes, element = np.divmod(tmem_operand_layout(m, values.shape[1], name, 1), 4 // size << 16)
    image = np.zeros((128, values.shape[1], size), np.complex128)
    image[lanes, element] = cells
    shadows = machine.cta.tmem.shadows
    assert shadows is not None
    columns = values.shape[1] * size // 4
    shadows[:, A_COLUMN : A_COLUMN + columns] = image.reshape(128, -1).view(SHADOW_TYPE)


def shadow_of_d(machine: Machine, m: int, n: int) -> np.ndarray:
    """The doubles of D."""
    shadows = machine.cta.tmem.shadows
    assert shadows is not None
    address = accumulator_layout(m, n, ctas=1)
    cells = shadows.view(np.complex128).reshape(128, 512, 4)
    found: np.ndarray = cells.real[address >> 16, COLUMN + (address & 0xFFFF), 0]
    return found


CASES = [
    ("bf16", 128, 64, ("SW128", False), ("SW128", False)),
    ("bf16", 64, 32, ("SW64", True), ("SW32", True)),
    ("f16", 128, 64, ("INTER", False), ("SW128", True)),
    ("tf32", 128, 32, ("SW128", False), ("SW128", False)),
    ("e4m3", 128, 32, ("SW64", False), ("SW128", False)),
    ("bf16", 128, 32, None, ("SW128", False)),
]


@pytest.mark.parametrize(("name", "m", "n", "a_layout", "b_layout"), CASES)
def test_a_product_of_shadows(
    name: str, m: int, n: int, a_layout: tuple[str, bool] | None, b_layout: tuple[str, bool]
) -> None:
    step = STEP[KIND[name]]
    depth = 4 * step  # 128 bytes, a whole row of the widest swizzle
    rng = np.random.default_rng(m + n)
    a, b = rng.uniform(-2, 2, (m, depth)), rng.uniform(-2, 2, (n, depth))
    machine = ShadowedMachine()
    machine.alloc(512)
    mn = a_layout is not None and a_layout[1]
    idesc = instruction_descriptor(name, name, m, n, a_mn=mn, b_mn=b_layout[1])
    right = Operand(shared_layout(b_layout[0], name, b_layout[1], n, depth), B_AT, name)
    put(machine, right, b)
    left = None
    if a_layout is not None:
        left = Operand(shared_layout(a_layout[0], name, a_layout[1], m, depth), A_AT, name)
        put(machine, left, a)
    else:
        put_tmem(machine, A_COLUMN, name, m, a)
        put_shadows_in_tmem(machine, name, m, a)
    for block in range(4):
        source = A_COLUMN + 8 * block if left is None else left.descriptor(step * block)
        machine.mma(
            KIND[name], COLUMN, source, right.descriptor(step * block), idesc, a_in_tmem=left is None,
            accumulate=block > 0,
        )  # fmt: skip
    machine.finish()
    exact = a @ b.T
    assert np.abs(shadow_of_d(machine, m, n) - exact).max() < 1e-11
    own = result(machine, COLUMN, m, n).view(np.float32)
    assert np.abs(own - exact).max() > 1e-4


def test_an_operand_without_shadows_is_the_number_of_its_bits() -> None:
    """B's bytes are overwritten after its shadows were made: the product takes the new bytes."""
    rng = np.random.default_rng(5)
    a, b = rng.uniform(-2, 2, (128, 16)), rng.integers(-3, 4, (16, 16)).astype(np.float64)
    machine = ShadowedMachine()
    machine.alloc(512)
    left = Operand(shared_layout("INTER", "bf16", False, 128, 16), A_AT, "bf16")
    right = Operand(shared_layout("INTER", "bf16", False, 16, 16), B_AT, "bf16")
    put(machine, left, a)
    put(machine, right, b + 0.3)
    right.put(machine, b)
    idesc = instruction_descriptor("bf16", "bf16", 128, 16)
    machine.mma("f16", COLUMN, left.descriptor(0), right.descriptor(0), idesc)
    machine.finish()
    assert np.abs(shadow_of_d(machine, 128, 16) - a @ b.T).max() < 1e-11
