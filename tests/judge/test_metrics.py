# SPDX-License-Identifier: Apache-2.0
"""Metrics against plain numpy in fp64, on random and on adversarial tensors."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.judge import block_stats, metrics
from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.location import whole_tensor
from gdnbench.judge.metrics import compare
from gdnbench.judge.row_source import Memory
from gdnbench_kernels.contract import Partition, Region
from tests.messages import wording
from tests.subset import quick

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
AXES = ("T", "Hv", "V")

# fp32 sums of at most 128 products in any order: relative error below 128 * 2**-24.
SUMS = 128 * 2.0**-24


def chunked(lengths: list[int], chunk: int = 64, gap: int = 0) -> Partition:
    """Sequences of these lengths in chunks, with `gap` rows of padding after each sequence."""
    regions, start = [], 0
    for sequence, length in enumerate(lengths):
        for c in range(0, length, chunk):
            size = min(chunk, length - c)
            regions.append(Region(start + c, start + c + size, sequence, c // chunk, c))
        start += length + gap
    return Partition(tuple(regions), head_axis=1)


def pair(dtype: torch.dtype, shape: tuple[int, ...], noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = y + noise * torch.randn(shape, generator=generator, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def wide(tensor: Tensor) -> np.ndarray:
    return tensor.double().numpy()


def reference_figures(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """The definitions, written down once more."""
    d = x - y
    return {
        "max_abs": np.abs(d).max(),
        "mean_abs": np.abs(d).mean(),
        "rms": math.sqrt((d * d).mean()),
        "rms_ratio": math.sqrt((d * d).mean()) / math.sqrt((y * y).mean()),
        "relative_l2": np.linalg.norm(d.ravel()) / np.linalg.norm(y.ravel()),
        "cosine": 1 - (x.ravel() @ y.ravel()) / (np.linalg.norm(x.ravel()) * np.linalg.norm(y.ravel())),
    }


def assert_figures(errors: metrics.Errors, x: np.ndarray, y: np.ndarray) -> None:
    for name, expected in reference_figures(x, y).items():
        # The definition of the cosine distance itself cancels down to a few fp64 epsilon.
        absolute = 1e-14 if name == "cosine" else 0.0
        # The cosine distance has sums of both signs in it: hence a wider relative bound.
        relative = 100 * SUMS if name == "cosine" else SUMS
        assert getattr(errors, name) == pytest.approx(expected, rel=relative, abs=absolute), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noise", [0.3, 1e-3])
def test_totals_and_groups(dtype: torch.dtype, noise: float) -> None:
    partition = chunked([1, 63, 64, 65, 150])
    x, y = pair(dtype, (343, 3, 32), noise)
    found = compare(Memory(x), Memory(y), partition, AXES)
    assert_figures(found.total, wide(x), wide(y))
    assert found.elements == found.total.count == x.numel()
    for i, region in enumerate(partition.regions):
        rows = slice(region.start, region.stop)
        for head in range(3):
            if not np.array_equal(wide(x)[rows, head], wide(y)[rows, head]):
                assert_figures(found.groups.errors(i, head), wide(x)[rows, head], wide(y)[rows, head])


def test_by_sequence_merges_chunks() -> None:
    x, y = pair(torch.float32, (200, 2, 16), 0.1)
    merged = compare(Memory(x), Memory(y), chunked([130, 70]), AXES).groups.by_sequence()
    assert [region.sequence for region in merged.regions] == [0, 1]
    for row, rows in enumerate((slice(0, 130), slice(130, 200))):
        for head in range(2):
            assert_figures(merged.errors(row, head), wide(x)[rows, head], wide(y)[rows, head])


def ulp_by_definition(x: Tensor, y: Tensor) -> np.ndarray:
    """Distances by ranks: how many representable values lie between, from Python integers of the bits."""
    width = x.element_size() * 8
    ints = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[width]
    view = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[width]

    def rank(t: Tensor) -> list[int]:
        bits = [int(b) for b in t.reshape(-1).view(view).numpy().view(ints)]
        top = 1 << (width - 1)
        return [-(b - top) if b >= top else b for b in bits]

    return np.array([abs(a - b) for a, b in zip(rank(x), rank(y), strict=True)], dtype=object)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noise", [0.0, 1e-3, 3.0])
def test_ulp_maximum_histogram_and_unequal(dtype: torch.dtype, noise: float) -> None:
    x, y = pair(dtype, (40, 2, 16), noise)
    x[3], y[3] = 0.0, -0.0
    found = compare(Memory(x), Memory(y), chunked([40]), AXES)
    distances = ulp_by_definition(x, y)
    assert found.total.max_ulp == pytest.approx(int(distances.max()), rel=2**-52)  # kept in fp64
    counts = np.bincount([int(d).bit_length() for d in distances])
    assert list(found.ulp_histogram) == counts.tolist()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    assert found.unequal == int((x.view(bits) != y.view(bits)).sum())


def test_ulp_of_bfloat16_agrees_with_ml_dtypes_neighbours() -> None:
    y = np.array([1.0, -1.0, 0.0, 3.5], dtype=ml_dtypes.bfloat16)
    x = y
    for steps in range(1, 4):
        x = np.nextafter(x, np.array(np.inf, dtype=ml_dtypes.bfloat16))
        tensors = [torch.from_numpy(v.view(np.int16).copy()).view(torch.bfloat16) for v in (x, y)]
        assert compare(Memory(tensors[0]), Memory(tensors[1]), whole_tensor(4)).total.max_ulp == steps


@pytest.mark.parametrize("dtype", quick(DTYPES, 0, 3, 4))
def test_every_single_wrong_element_is_found(dtype: torch.dtype) -> None:
    partition = chunked([5, 70])
    y = torch.ones(75, 2, 3, dtype=torch.float64).to(dtype)
    for index in np.ndindex(75, 2, 3):
        x = y.clone()
        x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])[index] += 1
        found = compare(Memory(x), Memory(y), partition, AXES)
        assert found.worst is not None
        at = found.worst.at
        assert at.index == index
        assert (at.sequence, at.token) == ((0, index[0]) if index[0] < 5 else (1, index[0] - 5))
        assert (at.chunk, at.head, at.dims) == (at.token // 64, index[1], (("V", index[2]),))
        assert (found.worst.x, found.worst.y, found.worst.ulp) == (float(x[index].double()), 1.0, 1)
        assert found.unequal == 1


def test_padding_never_counts() -> None:
    partition = chunked([3, 70], gap=2)
    x, y = pair(torch.bfloat16, (77, 2, 8), 0.0)
    for row in (3, 4, 75, 76):
        x[row] = torch.nan
        y[row] = 1e30
    found = compare(Memory(x), Memory(y), partition, AXES)
    assert found.bits_equal
    assert found.nonfinite.unequal == 0
    assert found.elements == 73 * 16


def test_tokens_past_a_chunks_end_never_count() -> None:
    """A stage [UB, Hv, C, C] whose rows are chunks: only `tokens` rows of the last one are used."""
    partition = Partition((Region(0, 1, 0, 0, tokens=4), Region(1, 2, 0, 1, tokens=3)), head_axis=1)
    x, y = pair(torch.float32, (3, 2, 4, 4), 0.0)
    x[1, :, 3:], x[2] = 9.0, torch.nan
    assert compare(Memory(x), Memory(y), partition).unequal == 0
    x[1, 0, 2, 1] += 1
    found = compare(Memory(x), Memory(y), partition)
    assert found.unequal == 1
    assert found.total.count == 2 * (4 + 3) * 4


def test_nan_and_infinity() -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor([nan, nan, 1.0, inf, inf, -inf, 2.0, 4.0])
    y = torch.tensor([nan, 1.0, nan, inf, -inf, 5.0, inf, 3.0])
    found = compare(Memory(x), Memory(y), whole_tensor(8), ("n",))
    wrong = found.nonfinite
    assert (wrong.nan_only_x, wrong.nan_only_y, wrong.inf_unequal) == (1, 1, 3)
    assert wrong.first is not None
    assert wrong.first.at.index == (1,)
    assert found.total.count == 1
    assert found.total.max_abs == 1.0
    assert found.unequal == 6


def test_nans_of_any_payload_are_equal() -> None:
    x = torch.tensor([0x7FC00000, 0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    y = torch.tensor([-0x400000, 0x7FC12345, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    found = compare(Memory(x), Memory(y), whole_tensor(3))
    assert found.bits_equal
    assert found.nonfinite.unequal == 0


def test_zeros_of_both_signs_are_0_ulp_apart_but_unequal() -> None:
    x, y = torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(2, 3, dtype=torch.bfloat16)
    x[1, 2] = -0.0
    found = compare(Memory(x), Memory(y), whole_tensor(2), ("rows", "columns"))
    assert (found.total.max_ulp, found.total.max_abs, found.unequal) == (0, 0.0, 1)
    assert found.worst is not None
    assert found.worst.at.index == (1, 2)


@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-30, 1e-18, 1e18, 1e30, 1e38])
def test_extreme_magnitudes_neither_overflow_nor_vanish(scale: float) -> None:
    """Squares of these leave fp32's range, so the fp64 way must take over."""
    generator = torch.Generator().manual_seed(1)
    y = (torch.randint(1, 4, (20, 2, 64), generator=generator) * scale).float()
    x = (torch.randint(1, 4, (20, 2, 64), generator=generator) * scale).float()
    assert_figures(compare(Memory(x), Memory(y), chunked([20]), AXES).total, wide(x), wide(y))


def test_one_huge_element_among_small_ones() -> None:
    x, y = pair(torch.float32, (64, 2, 64), 1e-3)
    x[5, 1, 7] = 3e38
    found = compare(Memory(x), Memory(y), chunked([64]), AXES)
    assert_figures(found.total, wide(x), wide(y))
    assert found.worst is not None
    assert found.worst.at.index == (5, 1, 7)


@pytest.mark.parametrize("factor", [0.0, 1e-4, 1e-2, 1.0, 1.001, 100.0])
def test_cosine_of_parallel_tensors(factor: float) -> None:
    y = pair(torch.float32, (64, 2, 64), 0.0)[1]
    x = y * factor
    found = compare(Memory(x), Memory(y), chunked([64]), AXES)
    # |x|^2 is a difference of fp64 sums that cancels down to factor**2: at most 2**-52 / 1e-8 is lost.
    assert found.total.cosine == pytest.approx(1.0 if factor == 0 else 0.0, abs=1e-7)


@pytest.mark.parametrize("shape", [(0, 2, 4), (3, 0, 4), (3, 2, 0), (0,), ()])
def test_empty_and_0d(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    rows = shape[0] if shape else 1
    partition = Partition((Region(0, rows, 0),), head_axis=1 if len(shape) > 1 else None)
    found = compare(Memory(x), Memory(x.clone()), partition)
    assert found.bits_equal
    assert found.total.count == (1 if shape == () else 0)


def test_no_region_compares_nothing() -> None:
    found = compare(Memory(torch.zeros(3, 2)), Memory(torch.ones(3, 2)), Partition((), 1))
    assert (found.elements, found.total.count, found.worst) == (0, 0, None)


def test_integers() -> None:
    x, y = torch.tensor([1, 5, -7], dtype=torch.int32), torch.tensor([1, 5, 2], dtype=torch.int32)
    found = compare(Memory(x), Memory(y), whole_tensor(3))
    assert (found.unequal, found.total.max_abs, found.total.max_ulp) == (1, 9.0, 9)


def test_unordered_regions_and_head_axis_2() -> None:
    """Slots of a pool come in any order; a decode output has its heads on axis 2 and its tokens on axis 1."""
    x, y = pair(torch.float32, (4, 2, 3, 5), 0.1)
    partition = Partition((Region(3, 4, 0), Region(1, 2, 1)), head_axis=2, token_axis=1)
    found = compare(Memory(x), Memory(y), partition, ("B", "S", "Hv", "V"))
    kept = [1, 3]
    assert_figures(found.total, wide(x)[kept], wide(y)[kept])
    for i, region in enumerate(found.groups.regions):
        for head in range(3):
            rows = (region.start, slice(None), head)
            assert_figures(found.groups.errors(i, head), wide(x)[rows], wide(y)[rows])
    assert found.worst is not None
    index = np.unravel_index(np.abs(wide(x) - wide(y))[kept].argmax(), (2, 2, 3, 5))
    assert found.worst.at.index == (kept[index[0]], *(int(i) for i in index[1:]))
    assert (found.worst.at.token, found.worst.at.head) == (index[1], index[2])


def test_against_fp64_takes_ulp_and_bits_from_the_rounded_reference() -> None:
    y = torch.tensor([1.0, 1.0 + 2.0**-10, 3.0], dtype=torch.float64)
    x = torch.tensor([1.0, 1.0, 3.0 + 2.0**-6], dtype=torch.bfloat16)
    found = compare(Memory(x), Memory(y), whole_tensor(3))
    assert found.unequal == 1
    assert found.total.max_ulp == 1
    assert found.total.max_abs == 2.0**-6


def test_tolerance_counts_what_exceeds_it() -> None:
    x, y = torch.tensor([1.0, 2.0, 100.0, 0.0]), torch.tensor([1.05, 2.5, 101.0, 0.2])
    found = compare(Memory(x), Memory(y), whole_tensor(4), (), Tolerance(0.1, 0.01))
    expected = np.abs(wide(x) - wide(y)) > 0.1 + 0.01 * np.abs(wide(y))
    assert found.violations == expected.sum() == 2
    assert found.worst is not None
    assert found.worst.at.index == (1,)  # 100 is further off, but within its relative share


def test_blocks_and_reads_do_not_change_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = pair(torch.bfloat16, (343, 3, 32), 0.1)
    partition = chunked([1, 63, 64, 65, 150])
    whole_at_once = compare(Memory(x), Memory(y), partition, AXES)
    monkeypatch.setattr(block_stats, "BLOCK", 100)
    monkeypatch.setattr(metrics, "READ_BYTES", 1000)
    in_pieces = compare(Memory(x), Memory(y), partition, AXES)
    assert in_pieces.worst == whole_at_once.worst
    assert in_pieces.ulp_histogram == whole_at_once.ulp_histogram
    np.testing.assert_allclose(in_pieces.groups.sums, whole_at_once.groups.sums, rtol=SUMS)
    np.testing.assert_array_equal(in_pieces.groups.peaks, whole_at_once.groups.peaks)


class Digested:
    """Rows that must not be read: their digest says enough."""

    shape, dtype, digest = (4, 2, 8), torch.bfloat16, "same"

    def read_rows(self, start: int, stop: int) -> Tensor:
        raise AssertionError("equal digests need no elements")


def test_equal_digests_read_nothing() -> None:
    found = compare(Digested(), Digested(), chunked([4]), AXES)
    assert found.bits_equal
    assert (found.elements, found.total.count, found.total.max_abs) == (64, 64, 0.0)


def test_shapes_must_be_equal_and_regions_apart() -> None:
    with pytest.raises(ValueError, match=wording("judge.shapes-differ", shape="(2,)", other="(3,)")):
        compare(Memory(torch.zeros(2)), Memory(torch.zeros(3)), whole_tensor(2))
    overlapping = Partition((Region(0, 2, 0), Region(1, 3, 1)), None)
    with pytest.raises(ValueError, match=wording("judge.regions-overlap", row=1)):
        compare(Memory(torch.zeros(3)), Memory(torch.zeros(3)), overlapping)
