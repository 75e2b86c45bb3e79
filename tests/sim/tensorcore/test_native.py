# SPDX-License-Identifier: Apache-2.0
"""The compiled models give the bits of the NumPy ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gdnbench.sim.tensorcore import native, reference
from gdnbench.sim.tensorcore.formats import F16
from gdnbench.sim.tensorcore.product import Product
from tests.seeds import drawn
from tests.sim.tensorcore.mma_operands import PRODUCTS, every_kind, stratified
from tests.subset import quick

MODELS = ("hardware", "exact")


def compare(product: Product, seed: int, m: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    for what, a, b, c in every_kind(rng, product, m, n):
        for model in MODELS:
            want = reference.multiply(product, model, a, b, c)
            got = native.multiply(product, model, a, b, c)
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want, err_msg=f"{model}, {what}, seed {seed}")


@pytest.mark.every(3)
@pytest.mark.parametrize("product", quick(PRODUCTS, *range(0, len(PRODUCTS), 3), ids=map(str, PRODUCTS)))
def test_fixed_operands(product: Product) -> None:
    compare(product, 30, 67, 37)


@pytest.mark.slow
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_drawn_operands(product: Product) -> None:
    compare(product, drawn(f"product {product}"), 19, 21)


@pytest.mark.slow  # the instruction tests run for x86-64-v3
@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v2"])
def test_other_cpus(name: str, as_cpu: Callable[[str], None]) -> None:
    as_cpu(name)
    for product in PRODUCTS[::3]:
        compare(product, 35, 35, 21)


@pytest.mark.slow
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_many_drawn_operands(product: Product) -> None:
    start = drawn(f"many products {product}")
    for seed in range(start, start + 20):
        compare(product, seed, 128, 64)


@pytest.mark.parametrize("m", [0, 1, 16, 63, 64, 65, 128, 129])
@pytest.mark.parametrize("n", [0, 1, 8, 15, 16, 17, 256])
def test_shapes(m: int, n: int) -> None:
    product = Product(F16, F16, "f32", 16)
    rng = np.random.default_rng(31)
    a, b = stratified(rng, F16, (m, 16), 6), stratified(rng, F16, (n, 16), 6)
    c = stratified(rng, product.accumulator, (m, n), 6)
    for model in MODELS:
        want = reference.multiply(product, model, a, b, c)
        np.testing.assert_array_equal(native.multiply(product, model, a, b, c), want)


def test_operands_that_are_views() -> None:
    product = Product(F16, F16, "f32", 16)
    rng = np.random.default_rng(32)
    a, b = stratified(rng, F16, (16, 40), 6).T[:, ::-1], stratified(rng, F16, (24, 32), 6)[:, ::2]
    c = stratified(rng, product.accumulator, (24, 40), 6).T
    want = reference.multiply(product, "hardware", a, b, c)
    np.testing.assert_array_equal(native.multiply(product, "hardware", a, b, c), want)


def test_only_the_result_is_written() -> None:
    """The C interface, on a result with guards around it, gaps between its rows, and rows that are not whole
    vectors."""
    product = Product(F16, F16, "f32", 16)
    rng = np.random.default_rng(33)
    a, b = stratified(rng, F16, (5, 16), 6), stratified(rng, F16, (19, 16), 6)
    room = np.full((7, 23), 0xDEADBEEF, np.uint32)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4, *[ctypes.c_void_p] * 4)(
        native.address(product, "hardware")
    )
    function(5, 19, 0, 23, a.ctypes.data, b.ctypes.data, None, room[1:].ctypes.data)
    result = room[1:6, :19]
    np.testing.assert_array_equal(result, reference.multiply(product, "hardware", a, b, None))
    result[...] = 0xDEADBEEF
    assert (room == 0xDEADBEEF).all()


@pytest.mark.parametrize("model", MODELS)
def test_a_product_in_place(model: str) -> None:
    """D replaces C in columns 5 to 23 of a wider matrix, as in tensor memory."""
    product = Product(F16, F16, "f32", 16)
    rng = np.random.default_rng(34)
    a, b = stratified(rng, F16, (70, 16), 6), stratified(rng, F16, (19, 16), 6)
    room = stratified(rng, product.accumulator, (70, 64), 6)
    before, part = room.copy(), room[:, 5:24]
    assert native.multiply(product, model, a, b, part, part) is part
    np.testing.assert_array_equal(part, reference.multiply(product, model, a, b, before[:, 5:24]))
    part[...] = before[:, 5:24]
    np.testing.assert_array_equal(room, before)


@pytest.mark.slow
def test_threads_share_compiled_products() -> None:
    rng = np.random.default_rng(34)
    jobs = [(p, *case) for p in PRODUCTS for case in every_kind(rng, p, 16, 24)[:2]]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda job: native.multiply(job[0], "hardware", *job[2:]), jobs))
    for (product, what, a, b, c), got in zip(jobs, results, strict=True):
        np.testing.assert_array_equal(got, reference.multiply(product, "hardware", a, b, c), err_msg=what)
