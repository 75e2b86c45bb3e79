# SPDX-License-Identifier: Apache-2.0
"""swa_decode: the oracle against attention written out here and torch's SDPA in fp64, torch's kernel against
the oracle, and what the contract refuses."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.swa_decode import kernel_cost
from gdnbench_kernels.swa_decode.contract import LSE, OPERATION
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.reference import reference
from gdnbench_kernels.swa_decode.torch_paged import torch_paged
from tests.kernels.latent_bytes import latent
from tests.messages import wording
from tests.seeds import drawn

Kernel = Callable[..., dict[str, Tensor]]
LAYOUTS = ("per_token_scale", "fp8_ds_mla", "bfloat16")

# fp64: sums of 512 products and of 128 terms, each of a relative error of a rounding; exp multiplies the
# absolute error of a score, which is below 1e4 here, with it.
EXACT = 4 * (512 + 128) * 2.0**-53 * 1e4


def made(**options: Any) -> Call:
    call = OPERATION.synth(**options)
    OPERATION.validate(call)
    return call


def ran(kernel: Kernel, call: Call) -> dict[str, Tensor]:
    return kernel(**call.tensors, **call.scalars, **call.conventions)


def with_tensors(call: Call, **tensors: Tensor) -> Call:
    return Call({**call.tensors, **tensors}, call.scalars, call.conventions)


@dataclass(frozen=True, slots=True)
class Dense:
    """The formula in fp64, request by request and head by head; what a rounding of o can come to besides."""

    o: np.ndarray  # [T, H, 512]
    lse: np.ndarray  # [T, H]
    size: np.ndarray  # [T, H, 512], o of the rows' magnitudes
    slope: np.ndarray  # [T, H], root of the sum of (scale q row)^2, the largest over slots


def dense(call: Call) -> Dense:
    q = call.tensors["q"].double().numpy()
    tokens, heads, _ = q.shape
    given = call.scalars.get("scale")
    scale = 1 / math.sqrt(512) if given is None else float(given)
    indices = call.tensors["swa_indices"].numpy()
    indices = indices.reshape(tokens, indices.shape[-1])
    lens = call.tensors["swa_lens"].tolist()
    sinks = call.tensors["attn_sink"].tolist() if "attn_sink" in call.tensors else [-math.inf] * heads
    o, lse = np.zeros((tokens, heads, 512)), np.full((tokens, heads), -math.inf)
    size, slope = np.zeros(o.shape), np.zeros(lse.shape)
    for token in range(tokens):
        slots = [int(slot) for slot in indices[token, : lens[token]] if slot != -1]
        if not slots:
            continue
        rows = np.stack([latent(call, slot) for slot in slots])
        for head in range(heads):
            scores = scale * (rows * q[token, head]).sum(1)
            largest = scores.max()
            weights = np.exp(scores - largest)
            total = weights.sum()
            lse[token, head] = largest + math.log(total) if total == total else math.nan
            with np.errstate(over="ignore"):
                total += np.exp(sinks[head] - largest)
            o[token, head] = (weights[:, None] * rows).sum(0) / total
            size[token, head] = (weights[:, None] * np.abs(rows)).sum(0) / total
            slope[token, head] = np.sqrt(((scale * rows * q[token, head]) ** 2).sum(1)).max()
    return Dense(o, lse, size, slope)


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "holes": {"holes": 0.4},
    "nothing but holes": {"holes": 1.0},
    "a sink": {"sink": 0.0, "holes": 0.2},
    "a huge sink": {"sink": 1e6},
    "no sink, said": {"sink": -math.inf},
    "an infinite sink": {"sink": math.inf},
    "scores far apart": {"spread": 1e3, "sink": 10.0},
    "magnitudes": {"scale_range": 1024.0},
    "large values": {"magnitude": 1e30},
    "small values": {"magnitude": 1e-30},
    "a scale of its own": {"scale": 0.3},
    "one page, so slots twice": {"shared_page": True, "lens": (100, 0, 40)},
    "as T1W": {"index_shape": "T1W"},
    "one request as 1TW": {"index_shape": "1TW", "lens": (64,)},
    "as many heads as requests": {"heads": 4, "lens": (9, 0, 128, 77)},
    "NaN in a row": {"nan_at": (0,), "lens": (20, 128)},
    "no requests": {"lens": ()},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_the_oracle_is_the_formula(name: str, layout: str) -> None:
    options = {"heads": 3, "lens": (128, 17, 0, 1), "block_size": 16} | CALLS[name]
    call = made(**options, cache_layout=layout)
    found = ran(reference, call)
    wanted = dense(call)
    assert found["o"].dtype == found["lse"].dtype == torch.float64
    np.testing.assert_allclose(found["lse"].numpy(), wanted.lse, rtol=EXACT, atol=EXACT)
    largest = np.nan_to_num(wanted.size).max(initial=0)
    np.testing.assert_allclose(found["o"].numpy(), wanted.o, rtol=0, atol=EXACT * largest)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_oracle_is_sdpa_over_the_gathered_rows(layout: str) -> None:
    """torch's own softmax, in fp64, the sink as one more key of which the value is zero."""
    seed = drawn("swa_decode", 31)
    call = made(heads=5, lens=(128, 60, 3), sink=0.5, holes=0.3, cache_layout=layout, seed=seed)
    o = ran(reference, call)["o"]
    for token, length in enumerate((128, 60, 3)):
        slots = [s for s in call.tensors["swa_indices"][token, :length].tolist() if s >= 0]
        rows = torch.from_numpy(np.stack([latent(call, slot) for slot in slots]))
        # A feature of their own: the score of the sink is q's 513th times 1, that of the rest nothing.
        q = torch.cat(
            [call.tensors["q"][token].double() * 512**-0.5, call.tensors["attn_sink"].double()[:, None]], 1
        )
        keys = torch.zeros(len(slots) + 1, 513, dtype=torch.float64)
        keys[:-1, :512], keys[-1, 512] = rows, 1
        values = torch.cat([rows, torch.zeros(1, 512, dtype=torch.float64)])
        wanted = scaled_dot_product_attention(q[None], keys[None], values[None], scale=1.0)[0]
        torch.testing.assert_close(o[token], wanted, rtol=0, atol=EXACT * float(rows.abs().max()))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_torchs_kernel_is_near_the_oracle(name: str, layout: str) -> None:
    options = {"heads": 3, "lens": (128, 17, 0, 1), "block_size": 16} | CALLS[name]
    call = made(**options, cache_layout=layout)
    found, exact = ran(torch_paged, call), dense(call)
    assert (found["o"].dtype, found["lse"].dtype) == (torch.bfloat16, torch.float32)
    o = found["o"].double().numpy()
    assert np.array_equal(np.isnan(o), np.isnan(exact.o))
    # Rows of per_token_scale are rounded to bfloat16, by 2^-9 and each feature by its own: a score is off by
    # 2^-9 of `slope`, and its weight in proportion. Those of the others are bfloat16 numbers. Then weights
    # are rounded, and o, and o once more where there is a sink. Below 2^-126 weights vanish in fp32.
    off = 2.0**-9 * exact.slope * (layout == "per_token_scale")
    allowed = (np.expm1(np.nan_to_num(off)) + 4 * 2.0**-9) * rms(np.nan_to_num(exact.size))
    assert bool((rms(np.nan_to_num(o - exact.o)) <= allowed + 2.0**-120).all())
    within(found["lse"], torch.from_numpy(exact.lse))


def rms(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt((values * values).mean(-1)))


def within(lse: Tensor, exact: Tensor) -> None:
    finite = exact.isfinite()
    assert torch.equal(lse.double()[~finite].nan_to_num(7), exact[~finite].nan_to_num(7))
    allowed = LSE.absolute + LSE.relative * exact[finite].abs()
    assert bool(((lse.double()[finite] - exact[finite]).abs() <= allowed).all())


@pytest.mark.parametrize("kernel", [reference, torch_paged])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sink", [None, 3.0, math.inf, -math.inf])
def test_what_attends_to_nothing(kernel: Kernel, layout: str, sink: float | None) -> None:
    call = made(lens=(0, 5, 128), holes=1.0, sink=sink, heads=4, cache_layout=layout)
    found = ran(kernel, call)
    assert not bool(found["o"].any())
    assert bool((found["lse"] == -math.inf).all())


def test_torchs_kernel_takes_a_cache_of_no_pages() -> None:
    """A record in which nothing was attended to holds none."""
    call = made(lens=(0, 0), heads=2)
    empty = with_tensors(call, cache=call.tensors["cache"][:0], inv_scale=call.tensors["inv_scale"][:0])
    assert not bool(ran(torch_paged, empty)["o"].any())


@pytest.mark.parametrize("kernel", [reference, torch_paged])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slot_named_twice_counts_twice(kernel: Kernel, layout: str) -> None:
    call = made(lens=(2,), heads=2, window=4, cache_layout=layout)
    first, second = call.tensors["swa_indices"][0, :2].tolist()
    once = ran(kernel, call)
    row = torch.tensor([[first, second, first, second]], dtype=torch.int32)
    twice = ran(kernel, with_tensors(call, swa_indices=row, swa_lens=torch.tensor([4], dtype=torch.int32)))
    # A rounding of o, of lse and of the sums.
    torch.testing.assert_close(twice["o"], once["o"], rtol=2**-7, atol=1e-6)
    torch.testing.assert_close(twice["lse"], once["lse"] + math.log(2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", [reference, torch_paged])
def test_a_row_depends_on_what_it_attends_to_alone(kernel: Kernel) -> None:
    """Other slots NaN or not, stale entries anything, pages further apart: the same bits."""
    for layout in ("per_token_scale", "fp8_ds_mla"):
        options: dict[str, Any] = {"lens": (30, 0, 128), "heads": 2, "holes": 0.2, "cache_layout": layout}
        poisoned, clean = made(**options), made(**options, poison=False)
        stale = clean.tensors["swa_indices"].clone()
        stale[0, 30:], stale[1] = -(2**31), 2**31 - 1
        cache = clean.tensors["cache"]
        stride = cache.stride(0) + 1600
        wide = torch.full((stride * len(cache),), 0x7F, dtype=torch.uint8)
        apart = wide.as_strided(cache.shape, (stride, cache.shape[2], 1)).view(cache.dtype)
        apart.view(torch.uint8).copy_(cache.view(torch.uint8))
        moved = with_tensors(clean, swa_indices=stale, cache=apart)
        OPERATION.validate(moved)
        one, other, third = (ran(kernel, call) for call in (poisoned, clean, moved))
        for name in one:
            assert torch.equal(one[name], other[name])
            assert torch.equal(one[name], third[name])


def test_a_sink_of_no_weight_and_of_all() -> None:
    options: dict[str, Any] = {"lens": (128, 3), "heads": 2}
    plain = ran(torch_paged, made(**options))
    without = ran(torch_paged, made(**options, sink=-math.inf))
    assert torch.equal(plain["o"], without["o"])
    for sink in (1e6, math.inf):
        full = ran(torch_paged, made(**options, sink=sink))
        assert not bool(full["o"].any())
        assert torch.equal(full["lse"], plain["lse"])


# Sums as a tensor core may make them: 16 products to a partial sum, each of which is cut to 24 bits.
def truncated_scores(q: Tensor, rows: Tensor) -> Tensor:
    products = (q.double().unsqueeze(1) * rows.double()).unflatten(-1, (32, 16)).sum(-1)
    total = torch.zeros(products.shape[:2], dtype=torch.float64)
    for part in products.unbind(-1):
        total = total + part
        mantissa, exponent = torch.frexp(total)
        total = torch.ldexp((mantissa * 2**24).trunc(), exponent - 24)
    return total


@pytest.mark.parametrize("spread", [0.0, 10.0, 1e2, 1e3, 1e4])
def test_the_tolerance_of_lse_has_room_for_cut_sums_and_no_more(spread: float) -> None:
    """Sums in fp32, cut at every step: within half the tolerance. lse in bfloat16: outside."""
    seed = drawn("swa_decode", 31)
    call = made(lens=(128,), heads=64, spread=spread, cache_layout="fp8_ds_mla", seed=seed)
    exact = ran(reference, call)["lse"][0]
    slots = call.tensors["swa_indices"][0].tolist()
    rows = torch.from_numpy(np.stack([latent(call, slot) for slot in slots]))
    cut = truncated_scores(call.tensors["q"][0], rows)
    # The scale, and exp2 and log2 of fp32 around it: a rounding of 2^-24 each of a number as large as lse.
    scores = (cut.float() * torch.tensor(512**-0.5, dtype=torch.float32)).float()
    lse = torch.logsumexp(scores, 1).double()
    allowed = LSE.absolute + LSE.relative * exact.abs()
    assert float(((lse - exact).abs() / allowed).max()) < 0.5, f"seed {seed}"
    rounded = exact.bfloat16().double()  # by up to 2^-9 of it: 1e-2 at the least lse there is here, 5
    assert float(((rounded - exact).abs() / allowed).max()) > 1, f"seed {seed}"


def test_costs_are_those_of_the_operation() -> None:
    """128 rows of 584 bytes, q and o of 1024 bytes a head, 4 of lse; two products of heads x 128 x 512."""
    for heads, kilobytes, megaflop in ((64, 206, 16.8), (128, 337, 33.6)):
        cost = kernel_cost.cost(heads)
        assert cost.bytes == 128 * 584 + 2 * heads * 512 * 2 + 4 * heads
        assert cost.flop == 2 * heads * 128 * 1024
        assert (round(cost.bytes / 1e3), round(cost.flop / 1e6, 1)) == (kilobytes, megaflop)
        batch = cost * 256
        assert (batch.bytes, batch.flop) == (256 * cost.bytes, 256 * cost.flop)
    per_token = kernel_cost.cost(64, 17, CacheLayout.PER_TOKEN_SCALE, scale_bytes=2, lse=False)
    assert per_token.bytes == 17 * 514 + 2 * 65536
    assert kernel_cost.cost(8, 1, CacheLayout.BFLOAT16).rows == 1024


def test_costs_count_what_a_calls_tensors_hold() -> None:
    for layout in CacheLayout:
        call = made(lens=(128,), heads=16, cache_layout=layout.value, block_size=128, spare_pages=0)
        rows = sum(
            call.tensors[name].numel() * call.tensors[name].element_size()
            for name in ("cache", "inv_scale")
            if name in call.tensors
        )
        assert kernel_cost.cost(16, layout=layout).rows == rows


def test_costs_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print(kernel_cost.table(64, 256))
    assert "| fp8_ds_mla | 4,294,967,296 | 19,136,512 | 16,777,216 | 16,842,752 | 52,756,480 |" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lens": (129,)}, wording("kernels.lens-range", window=128, given=129)),
        ({"lens": (-1,)}, wording("kernels.lens-range", window=128, given=-1)),
        ({"block_size": 48}, wording("kernels.block-size", block_size=48, known="16, 32, 64, 128, 256")),
        ({"holes": 1.5}, wording("kernels.holes-range", holes="1.5")),
        (
            {"magnitude": 1e31},
            wording("kernels.element-range", place="magnitude", value="1e+31", low="1e-30", high="1e30"),
        ),
        ({"spread": float("nan")}, wording("kernels.spread-range", spread="nan")),
        ({"spread": -1.0}, wording("kernels.spread-range", spread=-1)),
        ({"scale_range": 0.5}, wording("kernels.scale-range", scale_range="0.5")),
        ({"spare_pages": -1}, wording("kernels.spare-pages", spare_pages=-1)),
        (
            {"scale": 0.0, "spread": 1.0},
            wording("kernels.scale-zero"),
        ),
        (
            {"cache_layout": "fp8"},
            wording(
                "kernels.cache-layout", cache_layout="fp8", known="per_token_scale, fp8_ds_mla, bfloat16"
            ),
        ),
        ({"index_shape": "WT"}, wording("kernels.index-shape", index_shape="WT", known="TW, T1W, 1TW")),
        ({"scale_dtype": "float16"}, wording("kernels.scale-dtype", dtype="float16")),
        ({"nan_at": (2,)}, wording("kernels.request-missing", option="nan_at", request=2)),
        ({"nan_at": (9,)}, wording("kernels.request-missing", option="nan_at", request=9)),
        (
            {"nan_scale_at": (0,), "cache_layout": "bfloat16"},
            wording("kernels.scales-missing"),
        ),
    ],
)
def test_synth_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as refused:
        OPERATION.synth(**options)
    assert re.fullmatch(message, str(refused.value))
