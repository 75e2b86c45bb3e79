# SPDX-License-Identifier: Apache-2.0
"""tcgen05.ld and tcgen05.st against CuTe's copy atoms, and against each other."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.tcgen05_fragment import fragment
from tests.sim.tcgen05.cute_layouts import fragment_layout
from tests.sim.tcgen05.tensor_machine import Machine

# Columns that one repeat spans (PTX ISA 9.7.16.2.3: lanes x bits).
COLUMNS = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8}
FORMS = [
    (shape, repeat)
    for shape, registers in {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}.items()
    for repeat in (1, 2, 4, 8, 16, 32, 64, 128)
    if registers * repeat <= 128
]


def pattern() -> np.ndarray:
    """Every cell of TMEM tells where it is."""
    lane, column = np.meshgrid(np.arange(128), np.arange(512), indexing="ij")
    return (lane * 0x10000 + column).astype(np.uint32)


def filled() -> Machine:
    machine = Machine()
    assert machine.alloc(512) == 0
    machine.cta.tmem.cells[:] = pattern()
    machine.cta.tmem.valid[:] = True
    return machine


@pytest.mark.every(2)
@pytest.mark.parametrize(("shape", "repeat"), FORMS)
def test_load_follows_the_copy_atom(shape: str, repeat: int) -> None:
    """Each register holds the word that CuTe's atom says, in every quarter."""
    machine = filled()
    words = fragment_layout(shape, repeat)
    if shape == "16x32bx2":
        # The atom's rows are both halves one after the other; the second lies 256 columns on.
        lane, column = np.divmod(words, 2 * repeat)
        column = column % repeat + 256 * (column // repeat)
        tail = ", 256"
    else:
        lane, column = np.divmod(words, COLUMNS[shape] * repeat)
        tail = ""
    for warp, first in ((0, 0), (1, 3), (2, 0), (3, 9)):
        if first + int(column.max()) >= 512:
            first = 0
        half = 16 if shape.startswith("16") and warp % 2 else 0
        address = (32 * warp + half) << 16 | first
        got = machine.load(shape, repeat, address, warp=warp, tail=tail)
        np.testing.assert_array_equal(got, (lane + 32 * warp + half) << 16 | column + first)


@pytest.mark.parametrize(
    ("shape", "repeat"), [("16x64b", 4), ("16x128b", 8), ("16x256b", 2), ("16x32bx2", 8)]
)
def test_store_through_one_shape_and_load_through_another(shape: str, repeat: int) -> None:
    """What a 16-lane shape stores, 32x32b loads lane by lane."""
    machine = Machine()
    machine.alloc(64)
    tail = ", 8" if shape == "16x32bx2" else ""
    frag = fragment_layout(shape, repeat)
    columns = 16 if shape == "16x32bx2" else COLUMNS[shape] * repeat
    rng = np.random.default_rng(1)
    image = rng.integers(0, 2**32, (32, columns), np.uint32)
    for half in (0, 16):
        machine.store(
            shape, repeat, (64 + half) << 16, image[half : half + 16].ravel()[frag], warp=2, tail=tail
        )
    np.testing.assert_array_equal(machine.load("32x32b", columns, 64 << 16, warp=2), image)


@pytest.mark.parametrize(("shape", "repeat"), [("32x32b", 4), ("16x64b", 2), ("16x128b", 4), ("16x256b", 1)])
def test_packing_takes_the_low_halves_of_neighbours(shape: str, repeat: int) -> None:
    """`.pack::16b` doubles the columns: register bits 0..15 from column 2c, 16..31 from 2c + 1."""
    machine = filled()
    lane, column = np.divmod(fragment_layout(shape, repeat), COLUMNS[shape] * repeat)
    got = machine.load(shape, repeat, 32 << 16 | 6, warp=1, mods=".pack::16b")
    np.testing.assert_array_equal(got, (2 * column + 6) | (2 * column + 7) << 16)

    image = (lane * 997 + column * 31337).astype(np.uint32)
    machine.store(shape, repeat, 32 << 16 | 6, image, warp=1, mods=".unpack::16b")
    cells = machine.cta.tmem.cells
    np.testing.assert_array_equal(cells[32 + lane, 6 + 2 * column], image & 0xFFFF)
    np.testing.assert_array_equal(cells[32 + lane, 7 + 2 * column], image >> 16)
    np.testing.assert_array_equal(machine.load(shape, repeat, 32 << 16 | 6, warp=1, mods=".pack::16b"), image)


def test_the_lane_field_may_be_relative_to_the_quarter() -> None:
    """Lane 0 in the address means the first lane of the warp's own quarter (epilogues rely on it)."""
    machine = filled()
    for warp in range(4):
        got = machine.load("32x32b", 2, 5, warp=warp)
        np.testing.assert_array_equal(got[:, 0], (32 * warp + np.arange(32)) << 16 | 5)


def test_fragment_has_no_more_than_128_registers() -> None:
    with pytest.raises(UnsupportedError, match="256 registers"):
        fragment("16x256b", 64)
