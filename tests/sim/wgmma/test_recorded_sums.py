# SPDX-License-Identifier: Apache-2.0
"""The products that an H200 gave admit the rule of wgmma's sums and none near it.

A rule near it is the same code with another `Rule`, or with another step of it; every one must miss bits that
the GPU gave. What the recording cannot tell apart is in `test_what_the_recording_leaves_open`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gdnbench.sim.tensorcore import product as product_module
from gdnbench.sim.tensorcore import reference
from gdnbench.sim.tensorcore.formats import Decoded
from gdnbench.sim.tensorcore.product import Rule
from tests.sim.silicon.capture import load
from tests.sim.silicon.wgmma import (
    LAYOUT_SEEDS,
    RANDOM,
    SPECIAL,
    TYPES,
    Case,
    d_matrix,
    random_operands,
    special_operands,
)
from tests.sim.wgmma.exact_sums import fused_sum
from tests.sim.wgmma.reference_sums import expected

Change = Callable[[Rule, int], Rule]
Types = tuple[str, str, str]

FLOATS: tuple[Types, ...] = (("f32", "bf16", "bf16"), ("f32", "f16", "f16"), ("f32", "tf32", "tf32"))
BYTES = tuple(types for types in TYPES if types[1] in ("e4m3", "e5m2"))
BYTES_IN_F32 = tuple(types for types in BYTES if types[0] == "f32")
BYTES_MIXED = tuple(types for types in BYTES if types[1] != types[2])


def recorded(name: str, case: Case) -> np.ndarray:
    return d_matrix(case, load("wgmma").answers[f"{name}/out_4"])


def of(pairs: tuple[tuple[Case, int], ...], types: Types) -> tuple[Case, int]:
    return next((case, seed) for case, seed in pairs if (case.d, case.a, case.b) == types)


def missed(types: Types) -> int:
    """Elements of the GPU, of random operands and of special ones, that the reference gives otherwise."""
    (case, seed), (special, special_seed) = of(RANDOM, types), of(SPECIAL, types)
    numbers = expected(case, random_operands(case, seed)) != recorded(case.name, case)
    name = f"{special.name}_specials"
    strange = expected(special, special_operands(special, special_seed)) != recorded(name, special)
    return int(numbers.sum() + strange.sum())


@pytest.mark.every(2)
@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_the_rule_is_the_gpu(types: Types) -> None:
    assert missed(types) == 0


@pytest.mark.every(2)
@pytest.mark.parametrize(("case", "seed"), LAYOUT_SEEDS, ids=[case.name for case, _ in LAYOUT_SEEDS])
def test_elements_lie_where_the_gpu_reads_them(case: Case, seed: int) -> None:
    np.testing.assert_array_equal(expected(case, random_operands(case, seed)), recorded(case.name, case))


@pytest.mark.every(2)
@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_exact_fractions_are_the_gpu(types: Types) -> None:
    """`exact_sums`, which random kernels are held to, at 64 random elements of each answer."""
    rng = random.Random(1)
    for (case, seed), make, suffix in (
        (of(RANDOM, types), random_operands, ""),
        (of(SPECIAL, types), special_operands, "_specials"),
    ):
        operands, gpu = make(case, seed), recorded(case.name + suffix, case)
        for row, column in ((rng.randrange(64), rng.randrange(case.n)) for _ in range(64)):
            total = int(operands.c[row, column])
            for _ in range(case.repeats):
                total = fused_sum(types, operands.a[row].tolist(), operands.b[column].tolist(), total)
            assert total == gpu[row, column], (case.name, row, column)


def more_bits(by: int) -> Change:
    return lambda rule, k: replace(rule, fraction_bits=rule.fraction_bits + by)


def in_halves(rule: Rule, k: int) -> Rule:
    """Two sums, one after another."""
    return replace(rule, sums=(tuple(range(k // 2)), tuple(range(k // 2, k))))


def keeping(more: int) -> Change:
    """Of an f32 D of bytes."""
    return lambda rule, k: replace(rule, cut=rule.cut - more)


def c_added(rule: Rule, k: int) -> Rule:
    return replace(rule, c_fused=False)


NEAR: tuple[tuple[str, Change, tuple[Types, ...]], ...] = (
    ("a bit less", more_bits(-1), FLOATS + BYTES),
    ("a bit more", more_bits(1), FLOATS + BYTES),
    ("half the terms", in_halves, TYPES),
    ("C added", c_added, TYPES),
    ("D keeps 12 bits", keeping(-1), BYTES_IN_F32),
    ("D keeps 14 bits", keeping(1), BYTES_IN_F32),
    ("D keeps all", lambda rule, k: replace(rule, cut=0), BYTES_IN_F32),
)


def follow(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "fused_sum_rule", lambda p: change(product_module.fused_sum_rule(p), p.k))


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("change", "types"),
    [
        pytest.param(change, t, id=f"{label}-{'-'.join(t)}")
        for label, change, of_these in NEAR
        for t in of_these
    ],
)
def test_a_rule_near_it_is_not(change: Change, types: Types, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(change, monkeypatch)
    assert missed(types) > 0


def zeros_have(exponent: Callable[[Decoded], np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """The exponent with which a zero takes part in the alignment."""
    monkeypatch.setattr(
        reference, "_nominal", lambda parts: np.where(parts.significand == 0, exponent(parts), parts.exponent)
    )


@pytest.mark.parametrize("types", BYTES_MIXED, ids="-".join)
def test_a_zero_byte_does_not_align_as_a_subnormal(types: Types, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros_have(lambda parts: parts.exponent, monkeypatch)
    assert missed(types) > 0


def test_what_the_recording_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """MMA-Sim's exponent of zeros, -126, and more or fewer bits of the sums of an f16 D of f16: the rule has
    them from what was recorded of mma.sync, whose f16 sums leave the bits open too."""
    with monkeypatch.context() as patch:
        zeros_have(lambda parts: np.full_like(parts.exponent, -126), patch)
        assert [missed(types) for types in TYPES] == [0] * len(TYPES)
    for by in (-1, 1):
        with monkeypatch.context() as patch:
            follow(more_bits(by), patch)
            assert missed(("f16", "f16", "f16")) == 0
