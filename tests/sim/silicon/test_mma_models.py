# SPDX-License-Identifier: Apache-2.0
"""The stored products of the GPU admit the `hardware` model and no other near it.

A model that keeps a bit fewer or more of each term, or sums in other groups, is the same code with another
`Rule`; every one must miss bits that the GPU gave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gdnbench.sim.tensorcore import product as product_module
from gdnbench.sim.tensorcore import reference
from gdnbench.sim.tensorcore.formats import FORMATS
from gdnbench.sim.tensorcore.product import Product, Rule
from tests.sim.silicon.capture import load
from tests.sim.silicon.fragments import matrix_a, matrix_b, matrix_c
from tests.sim.silicon.mma import FLOATS
from tests.sim.silicon.registry import kernels

Change = Callable[[Rule, int], Rule]


def in_groups(size: int) -> Change:
    """Sums of `size` products, one after another."""

    def change(rule: Rule, k: int) -> Rule:
        return replace(rule, sums=tuple(tuple(range(i, min(i + size, k))) for i in range(0, k, size)))

    return change


def with_bits(bits: int) -> Change:
    return lambda rule, k: replace(rule, fraction_bits=bits)


def mismatches(case: tuple[int, str, str, str]) -> int:
    """Of the GPU's elements, how many the reference gives otherwise."""
    k, d, a, b = case
    name = f"mma_m16n8k{k}_{d}_{a}_{b}"
    kernel, answers = kernels("mma")[name], load("mma").answers[f"{name}/out_4"]
    wanted = Product(FORMATS[a], FORMATS[b], "f32" if d == "f32" else "f16", k, "mma.sync")
    inputs = [buffer.data for buffer in kernel.buffers() if not buffer.is_result]
    count = {"a": 16 * k * wanted.a.storage.itemsize // 128, "b": 8 * k * wanted.b.storage.itemsize // 128}
    ma = matrix_a(inputs[: count["a"]], wanted.a.storage)
    mb = matrix_b(inputs[count["a"] : count["a"] + count["b"]], wanted.b.storage)
    storage = wanted.accumulator.storage
    mc, md = matrix_c(inputs[sum(count.values()) :], storage), matrix_c(list(answers), storage)
    model = [reference.multiply(wanted, "hardware", x, y, z) for x, y, z in zip(ma, mb, mc, strict=True)]
    return int(np.count_nonzero(np.stack(model) != md))


@pytest.mark.every(2)
@pytest.mark.parametrize("case", FLOATS, ids=str)
def test_the_model_is_the_gpu(case: tuple[int, str, str, str]) -> None:
    assert mismatches(case) == 0


HALF = (16, "f32", "bf16", "bf16")
WRONG: list[tuple[str, tuple[int, str, str, str], Change]] = [
    ("24 bits", HALF, with_bits(24)),
    ("26 bits", HALF, with_bits(26)),
    ("8 terms", HALF, in_groups(8)),
    ("24 bits", (16, "f32", "f16", "f16"), with_bits(24)),
    ("26 bits", (16, "f32", "f16", "f16"), with_bits(26)),
    ("8 terms", (16, "f32", "f16", "f16"), in_groups(8)),
    ("24 bits", (8, "f32", "tf32", "tf32"), with_bits(24)),
    ("26 bits", (8, "f32", "tf32", "tf32"), with_bits(26)),
    ("4 terms", (8, "f32", "tf32", "tf32"), in_groups(4)),
    ("24 bits", (32, "f32", "e5m2", "e5m2"), with_bits(24)),
    ("32 terms", (32, "f32", "e5m2", "e5m2"), in_groups(32)),
    ("32 terms", (32, "f32", "e4m3", "e4m3"), in_groups(32)),
    ("8 terms", (32, "f32", "e5m2", "e5m2"), in_groups(8)),
    ("C fused", (32, "f32", "e4m3", "e4m3"), lambda rule, k: replace(rule, c_fused=True)),
]


@pytest.mark.every(2)
@pytest.mark.parametrize(("label", "case", "change"), WRONG, ids=[f"{w[0]}-{w[1]}" for w in WRONG])
def test_a_model_beside_it_is_not(
    label: str, case: tuple[int, str, str, str], change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "fused_sum_rule", lambda p: change(product_module.fused_sum_rule(p), p.k))
    assert mismatches(case) > 0
