# SPDX-License-Identifier: Apache-2.0
"""v4_decode: the oracle against loops over the words of docs/operations.md in numpy, torch's kernel against
the oracle, swa_decode as a special case, and the forms of lse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode.contract import LSE
from gdnbench_kernels.swa_decode.contract import OPERATION as SWA
from gdnbench_kernels.swa_decode.reference import reference as swa_reference
from gdnbench_kernels.swa_decode.torch_paged import torch_paged as swa_torch
from gdnbench_kernels.v4_decode.contract import OPERATION
from gdnbench_kernels.v4_decode.reference import reference
from gdnbench_kernels.v4_decode.torch_paged import torch_paged
from tests.kernels.latent_bytes import latent
from tests.seeds import drawn

Kernel = Callable[..., dict[str, Tensor]]
LAYOUTS = ("per_token_scale", "fp8_ds_mla", "bfloat16")
ENTRIES = 128 + 512
"""The most that a call here attends to."""

# fp64: sums of 512 products and of as many terms as entries, each of a relative error of a rounding; exp
# multiplies the absolute error of a score, which is below 1e4 here, with it.
EXACT = 4 * (512 + ENTRIES) * 2.0**-53 * 1e4


def made(**options: Any) -> Call:
    call = OPERATION.synth(**{"heads": 2, "block_size": 16, "extra_block_size": 4, "topk": 40, **options})
    OPERATION.validate(call)
    return call


def ran(kernel: Kernel, call: Call) -> dict[str, Tensor]:
    return kernel(**call.tensors, **call.scalars, **call.conventions)


def with_tensors(call: Call, **tensors: Tensor) -> Call:
    return Call({**call.tensors, **tensors}, call.scalars, call.conventions)


def entries_of(call: Call, request: int, query: int) -> list[tuple[str, int]]:
    """What a query attends to: the pool's prefix and the slot of each entry, in order, from the words."""
    queries = call.tensors["q"].shape[1]
    row = request * queries + query
    found = []
    for pool, indices, lens in (("", "swa_indices", "swa_lens"), ("extra_", "extra_indices", "extra_lens")):
        if indices not in call.tensors:
            continue
        of_query = call.tensors[lens]
        length = int(
            of_query.view(-1)[row if of_query.numel() == queries * len(call.tensors["q"]) else request]
        )
        table = call.tensors[indices]
        entries = table.reshape(-1, table.shape[-1])[row].tolist()
        if pool and call.conventions["extra_index_form"] == "block_table":
            size = call.tensors["extra_cache"].shape[1]
            entries = [entries[p // size] * size + p % size for p in range(length)]
        found += [(pool, entry) for entry in entries[:length] if entry != -1]
    return found


@dataclass(frozen=True, slots=True)
class Dense:
    """The formula in fp64, query by query and head by head; what a rounding of o can come to besides."""

    o: np.ndarray  # [B, S, H, 512]
    lse: np.ndarray  # [B, S, H], natural, without the sink
    size: np.ndarray  # [B, S, H, 512], o of the rows' magnitudes
    slope: np.ndarray  # [B, S, H], root of the sum of (scale q row)^2, the largest over entries


def dense(call: Call) -> Dense:
    q = call.tensors["q"].double().numpy()
    requests, queries, heads, _ = q.shape
    given = call.scalars.get("scale")
    scale = 1 / math.sqrt(512) if given is None else float(given)
    sinks = call.tensors["attn_sink"].tolist() if "attn_sink" in call.tensors else [-math.inf] * heads
    o, lse = np.zeros(q.shape), np.full(q.shape[:3], -math.inf)
    size, slope = np.zeros(o.shape), np.zeros(lse.shape)
    for request in range(requests):
        for query in range(queries):
            entries = entries_of(call, request, query)
            if not entries:
                continue
            rows = np.stack([latent(call, slot, pool) for pool, slot in entries])
            for head in range(heads):
                at = (request, query, head)
                scores = scale * (rows * q[at]).sum(1)
                largest = scores.max()
                weights = np.exp(scores - largest)
                total = weights.sum()
                lse[at] = largest + math.log(total) if total == total else math.nan
                with np.errstate(over="ignore"):
                    total += np.exp(sinks[head] - largest)
                o[at] = (weights[:, None] * rows).sum(0) / total
                size[at] = (weights[:, None] * np.abs(rows)).sum(0) / total
                slope[at] = np.sqrt(((scale * rows * q[at]) ** 2).sum(1)).max()
    return Dense(o, lse, size, slope)


PAGED: dict[str, Any] = {"extra_index_form": "block_table", "extra_block_size": 2}
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no extra segment": {"extra_lens": ()},
    "the extra segment alone": {"lens": (0, 0, 0, 0), "extra_lens": (40, 1, 7, 0)},
    "drafts": {"queries": 3, "lens": (127, 1, 0, 20)},
    "drafts, one length a request": {"queries": 2, "lens_shape": "B", "index_shape": "T1W"},
    "pages of compressed rows": {**PAGED, "extra_lens": (75, 2, 1, 0)},
    "pages, drafts, flat": {**PAGED, "queries": 2, "index_shape": "TW", "lens_shape": "T"},
    "pages of one row, legal": {**PAGED, "extra_block_size": 1, "masked_indices": "legal"},
    "holes": {"holes": 0.4},
    "nothing but holes": {"holes": 1.0},
    "slots several times": {"duplicates": 0.6, "sink": 1.0},
    "a sink": {"sink": 0.0, "holes": 0.2},
    "a huge sink": {"sink": 1e6},
    "an infinite sink": {"sink": math.inf},
    "no sink, said": {"sink": -math.inf},
    "scores far apart": {"spread": 1e3, "sink": 10.0},
    "magnitudes": {"scale_range": 1024.0},
    "one allocation": {"packed": True, "queries": 2},
    "stale entries that are live": {"stale": "live"},
    "a scale of its own": {"scale": 0.3},
    "NaN in either segment": {"nan_at": (1,), "nan_extra_at": (0,)},
    "512 compressed rows": {"lens": (128,), "extra_lens": (512,), "topk": 512, "extra_block_size": 64},
    "no requests": {"lens": (), "extra_lens": ()},
}


def call_of(name: str, layout: str) -> Call:
    options = {
        "lens": (128, 17, 0, 1),
        "extra_lens": (40, 5, 3, 0),
        "cache_layout": layout,
        "extra_layout": layout,
    } | CALLS[name]
    return made(**options, seed=drawn("v4_decode", 31))


@pytest.mark.every(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_the_oracle_is_the_formula_and_torchs_kernel_near_it(name: str, layout: str) -> None:
    call = call_of(name, layout)
    exact = dense(call)
    found = ran(reference, call)
    assert found["o"].dtype == found["lse"].dtype == torch.float64
    np.testing.assert_allclose(found["lse"].numpy(), exact.lse, rtol=EXACT, atol=EXACT)
    largest = np.nan_to_num(exact.size).max(initial=0)
    np.testing.assert_allclose(found["o"].numpy(), exact.o, rtol=0, atol=EXACT * largest)
    torchs = ran(torch_paged, call)
    assert (torchs["o"].dtype, torchs["lse"].dtype) == (torch.bfloat16, torch.float32)
    o = torchs["o"].double().numpy()
    assert np.array_equal(np.isnan(o), np.isnan(exact.o))
    # As in test_swa_decode.py: rows of per_token_scale are rounded to bfloat16, by 2^-9 and each feature by
    # its own, so that a score is off by 2^-9 of `slope`; then weights, o, and o once more where there is a
    # sink are rounded. Below 2^-126 weights vanish in fp32.
    off = 2.0**-9 * exact.slope * (layout == "per_token_scale")
    allowed = (np.expm1(np.nan_to_num(off)) + 4 * 2.0**-9) * rms(np.nan_to_num(exact.size))
    assert bool((rms(np.nan_to_num(o - exact.o)) <= allowed + 2.0**-120).all())
    within(torchs["lse"], torch.from_numpy(exact.lse))


def rms(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt((values * values).mean(-1)))


def within(lse: Tensor, exact: Tensor) -> None:
    finite = exact.isfinite()
    assert torch.equal(lse.double()[~finite].nan_to_num(7), exact[~finite].nan_to_num(7))
    allowed = LSE.absolute + LSE.relative * exact[finite].abs()
    assert bool(((lse.double()[finite] - exact[finite]).abs() <= allowed).all())


def test_the_layouts_of_the_two_caches_are_their_own() -> None:
    for window, extra in (("bfloat16", "fp8_ds_mla"), ("fp8_ds_mla", "per_token_scale")):
        lens = (30, 5)
        call = made(cache_layout=window, extra_layout=extra, packed=True, lens=lens, extra_lens=lens)
        wanted = dense(call)
        found = ran(reference, call)["o"].numpy()
        np.testing.assert_allclose(found, wanted.o, rtol=0, atol=EXACT * wanted.size.max())


SPECIAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "a sink, holes": {"sink": 0.0, "holes": 0.25},
    "an infinite sink": {"sink": math.inf},
    "scores far apart, NaN": {"spread": 1e3, "nan_at": (0,)},
    "no lse, a scale": {"output_lse": False, "scale": -0.2},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SPECIAL)
def test_swa_decode_is_the_case_of_one_query_and_no_extra_segment(name: str, layout: str) -> None:
    """Bit for bit, in both kernels: the same call as one operation and as the other."""
    swa = SWA.synth(lens=(128, 17, 0, 1, 64), heads=3, cache_layout=layout, **SPECIAL[name])
    tensors = dict(swa.tensors)
    tensors["q"] = tensors["q"].unsqueeze(1)
    conventions = {"cache_layout": layout, "index_shape": "TW", "lens_shape": "T"}
    call = Call(tensors, swa.scalars, conventions)
    OPERATION.validate(call)
    for one, other in ((swa_reference, reference), (swa_torch, torch_paged)):
        wanted, found = ran(one, swa), ran(other, call)
        assert wanted.keys() == found.keys()
        for tensor in wanted:
            bits = found[tensor].squeeze(1)
            assert bits.dtype == wanted[tensor].dtype
            assert torch.equal(bits.view(torch.uint8), wanted[tensor].contiguous().view(torch.uint8))
    assert OPERATION.work(call) == SWA.work(swa)
    assert {k: v.tolist() for k, v in OPERATION.touched(call).items()} == {
        k: v.tolist() for k, v in SWA.touched(swa).items()
    }


@pytest.mark.parametrize("kernel", [reference, torch_paged])
def test_rows_count_alike_in_either_segment(kernel: Kernel) -> None:
    """A window's later half as the extra segment, of the same cache: the same sum in another order."""
    layouts = {"cache_layout": "bfloat16", "extra_layout": "bfloat16"}
    whole = made(lens=(40, 9), extra_lens=(), sink=0.0, **layouts)
    indices, lens = whole.tensors["swa_indices"], whole.tensors["swa_lens"]
    half = lens // 2
    moved = torch.zeros_like(indices)
    for row, (first, length) in enumerate(zip(half.view(-1).tolist(), lens.view(-1).tolist(), strict=True)):
        moved[row, 0, : length - first] = indices[row, 0, first:length]
    split = with_tensors(
        whole,
        swa_lens=half,
        extra_cache=whole.tensors["cache"],
        extra_indices=moved,
        extra_lens=lens - half,
    )
    OPERATION.validate(split)
    one, other = ran(kernel, whole), ran(kernel, split)
    # A rounding of o, of weights, of lse and of the sums.
    torch.testing.assert_close(other["o"].double(), one["o"].double(), rtol=2**-7, atol=2**-9)
    torch.testing.assert_close(other["lse"].double(), one["lse"].double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", [reference, torch_paged])
@pytest.mark.parametrize("sink", [None, 3.0, math.inf, -math.inf])
def test_what_attends_to_nothing(kernel: Kernel, sink: float | None) -> None:
    call = made(lens=(0, 5), extra_lens=(0, 3), queries=2, holes=1.0, sink=sink)
    found = ran(kernel, call)
    assert not bool(found["o"].any())
    assert bool((found["lse"] == -math.inf).all())


@pytest.mark.parametrize("kernel", [reference, torch_paged])
def test_slots_that_occur_twice_count_twice(kernel: Kernel) -> None:
    call = made(lens=(2,), extra_lens=(1,))
    once, tensors = ran(kernel, call), dict(call.tensors)
    for indices, lens, count in (("swa_indices", "swa_lens", 2), ("extra_indices", "extra_lens", 1)):
        table = call.tensors[indices].clone()
        table[0, 0, count : 2 * count] = table[0, 0, :count]
        tensors[indices], tensors[lens] = table, 2 * call.tensors[lens]
    twice = ran(kernel, with_tensors(call, **tensors))
    # A rounding of o, of lse and of the sums.
    torch.testing.assert_close(twice["o"], once["o"], rtol=2**-7, atol=1e-6)
    torch.testing.assert_close(twice["lse"], once["lse"] + math.log(2), rtol=1e-6, atol=1e-6)


FORMS = [
    (base, sink, empty)
    for base in "e2"
    for sink in ("without", "with")
    for empty in ("minus_inf", "plus_inf")
]


@pytest.mark.parametrize(("base", "with_sink", "empty"), FORMS)
@pytest.mark.parametrize("sink", [None, 2.0, -math.inf, math.inf])
def test_forms_of_lse(base: str, with_sink: str, empty: str, sink: float | None) -> None:
    """By the words: the logarithm of the sum, with the sink's term if asked, and what a sum of 0 has."""
    options: dict[str, Any] = {"lens": (30, 0), "extra_lens": (9, 0), "sink": sink, "sink_spread": 0.0}
    plain = dense(made(**options)).lse
    call = made(**options, lse_base=base, lse_sink=with_sink, lse_empty=empty)
    term = 0.0 if sink is None or with_sink == "without" else math.exp(sink) if sink < 700 else math.inf
    with np.errstate(divide="ignore"):
        wanted = np.log(np.exp(plain) + term) / (math.log(2) if base == "2" else 1)
    if empty == "plus_inf":
        wanted = np.where(wanted == -math.inf, math.inf, wanted)
    for kernel, rounding in ((reference, EXACT), (torch_paged, 4 * 2.0**-24)):
        found = ran(kernel, call)
        np.testing.assert_allclose(found["lse"].double().numpy(), wanted, rtol=rounding, atol=rounding)
        assert torch.equal(found["o"], ran(kernel, made(**options))["o"])


@pytest.mark.parametrize("kernel", [reference, torch_paged])
def test_other_slots_change_nothing(kernel: Kernel) -> None:
    """NaN or not where no query attends, and stale entries outside, live or unread: the same bits."""
    for form in ({}, PAGED):
        options = {"queries": 2, "extra_lens": (33, 5, 0, 1), **form}
        one = ran(kernel, made(**options))
        for other in ({"poison": False}, {"stale": "live"}, {"stale": "unread"}, {"packed": True}):
            found = ran(kernel, made(**options, **other))
            assert all(torch.equal(one[name], found[name]) for name in one)
