# SPDX-License-Identifier: Apache-2.0
"""Cells beside bytes: what counts as the shadow of an element, and those of global memory by address."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from gdnbench.sim.machine.shadow_cells import BF16, F16, F32, GlobalCells, make_cells, read_elements


def bits(values: np.ndarray) -> np.ndarray:
    """The bytes of numbers [n] as uint8[n * size]."""
    return np.ascontiguousarray(values).view(np.uint8)


def test_an_element_with_its_own_bytes() -> None:
    third = np.array([1 / 3, 2 / 3])
    data = bits(third.astype(np.float32))
    values, present = read_elements(make_cells(third, data, F32), data, F32)
    assert values.tolist() == third.tolist()
    assert present.all()


def test_changed_bytes_end_the_shadow_of_their_element_alone() -> None:
    third = np.array([1 / 3, 2 / 3])
    data = bits(third.astype(np.float32))
    cells = make_cells(third, data, F32)
    data[1] ^= 1
    values, present = read_elements(cells, data, F32)
    assert present.tolist() == [False, True]
    assert values.tolist() == [float(data[:4].view(np.float32)[0]), 2 / 3]


def test_another_format_does_not_read_it() -> None:
    third = np.array([1 / 3])
    data = bits(third.astype(np.float16))
    cells = make_cells(third, data, F16)
    assert not read_elements(cells, data, BF16)[1].any()


def test_the_upper_half_of_an_f32_is_a_bf16_and_back() -> None:
    third = np.array([1 / 3])
    data = bits(third.astype(np.float32))
    upper, cells = data[2:].copy(), make_cells(third, data, F32)[2:].copy()
    assert read_elements(cells, upper, BF16)[0].tolist() == [1 / 3]

    half = bits(third.astype(ml_dtypes.bfloat16))
    word = np.concatenate([np.zeros(2, np.uint8), half])
    widened = np.concatenate([np.zeros(2, np.complex128), make_cells(third, half, BF16)])
    assert read_elements(widened, word, F32)[0].tolist() == [1 / 3]
    word[0] = 1
    assert not read_elements(widened, word, F32)[1].any()


def test_global_cells_stay_when_intervals_grow_and_join() -> None:
    cells = GlobalCells()
    cells.cover([(1000, 1016), (2000, 2016)])
    third = np.array([[1 / 3]])
    data = bits(third.astype(np.float32).reshape(-1)).reshape(1, 4)
    for address in (1004, 2004):
        cells.scatter(np.array([address], np.uint64), make_cells(third, data, F32))
    cells.cover([(1008, 2010)])
    assert cells.covers(1000, 1016)
    assert not cells.covers(1000, 1017)
    for address in (1004, 2004):
        found = cells.gather(np.array([address], np.uint64), 4)
        assert read_elements(found, data, F32)[0].tolist() == [[1 / 3]]
    assert not read_elements(cells.gather(np.array([1500], np.uint64), 4), data, F32)[1].any()
    assert read_elements(cells.view(2004, 4), data[0], F32)[1].all()
