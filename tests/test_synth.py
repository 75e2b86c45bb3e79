# SPDX-License-Identifier: Apache-2.0
"""Made calls and records: deterministic, as their options say, and recorded as a capture would."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.pools import checksum, digits
from gdnbench.record import Status
from gdnbench.synth import draft, options_from_text, synthesise
from tests.messages import wording


def cosines(k: Tensor) -> Tensor:
    """Cosines of all pairs of different tokens, [H, T * (T - 1)]."""
    unit = torch.nn.functional.normalize(k.double(), dim=-1).movedim(0, 1)
    pairs = ~torch.eye(len(k), dtype=torch.bool)
    return (unit @ unit.mT)[:, pairs]


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("gdn_prefill", {"seqlens": (5, 0, 3), "initial_state": True, "qk": "raw"}),
        ("gdn_decode", {"batch": 4, "steps": 2, "speculative": True, "padding": 0.25}),
    ],
)
def test_calls_are_deterministic_in_the_seed(op: str, options: dict[str, Any]) -> None:
    first, again, other = (synthesise(op, **options, seed=seed) for seed in (7, 7, 8))
    assert all(first.tensors[name].equal(again.tensors[name]) for name in first.tensors)
    assert not first.tensors["v"].equal(other.tensors["v"])


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_key_correlation_is_the_mean_cosine(correlation: float) -> None:
    k = synthesise("gdn_prefill", seqlens=(200,), key_correlation=correlation).tensors["k"]
    # The shared vector's squared norm is 128 give or take 16, which moves a head's mean cosine c by up to
    # c (1 - c) 16 / 128 = 0.031; twice that, rounded up.
    assert abs(float(cosines(k).mean()) - correlation) < 0.07


def test_query_correlation_is_with_the_keys() -> None:
    """The expected cosine of a query and a key is sqrt(0.9 * 0.4) = 0.6; without it, 0."""
    for correlation, expected in ((0.4, 0.6), (0.0, 0.0)):
        options: dict[str, Any] = {"key_correlation": 0.9, "query_correlation": correlation}
        call = synthesise("gdn_prefill", seqlens=(200,), **options)
        q, k = (call.tensors[name].double().movedim(1, 0) for name in "qk")
        # A head's common vector moves the cosine by up to about 16 / 128, see the key correlation's test.
        assert abs(float((q @ k.mT).mean()) - expected) < 0.12


def test_queries_do_not_depend_on_the_option_left_out() -> None:
    first, same = (
        synthesise("gdn_prefill", seqlens=(9,), **more) for more in ({}, {"query_correlation": 0.0})
    )
    assert first.tensors["q"].equal(same.tensors["q"])


def test_sinks_are_spread_as_asked() -> None:
    equal, wide = (
        synthesise("swa_decode", lens=(1,), heads=128, sink=2.0, sink_spread=spread).tensors["attn_sink"]
        for spread in (0.0, 30.0)
    )
    assert (equal == 2.0).all()
    assert (
        20 < float(wide.std()) < 40
    )  # 128 draws: the deviation is off by 30 / sqrt(256) = 2; five times that


def test_live_stale_entries_are_attended_slots() -> None:
    call = synthesise("swa_decode", lens=(5, 0, 128), stale="live", holes=0.25)
    indices, lens = call.tensors["swa_indices"], call.tensors["swa_lens"]
    past = torch.arange(128) >= lens.unsqueeze(1)
    counted = indices[~past]
    assert set(indices[past].tolist()) <= set(counted[counted >= 0].tolist())
    outside = synthesise("swa_decode", lens=(5, 0, 128), holes=0.25).tensors["swa_indices"]
    assert outside[~past].equal(counted)
    assert (outside[past] > 1 << 30).all()


def test_full_correlation_makes_keys_identical() -> None:
    k = synthesise("gdn_prefill", seqlens=(20, 3), key_correlation=1.0).tensors["k"]
    assert k.equal(k[:1].expand_as(k))
    assert not k[0, 0].equal(k[0, 1])


def test_gate_span_is_the_sum_over_a_chunk() -> None:
    g = synthesise("gdn_prefill", seqlens=(6400,), heads=(1, 2), head_dim=(4, 4), gate_span=50.0).tensors["g"]
    assert (g <= 0).all()
    # 6400 uniform draws: their mean is off by 1 / sqrt(3 * 6400) = 0.7 % of itself; five times that.
    torch.testing.assert_close(-g.sum(0) / 100, torch.full((2,), 50.0), rtol=0.036, atol=0)


def test_gate_span_range_gives_each_head_its_own() -> None:
    options: dict[str, Any] = {"seqlens": (6400,), "heads": (1, 64), "head_dim": (4, 4)}
    spans = -synthesise("gdn_prefill", **options, gate_span=(1e-2, 1e4)).tensors["g"].sum(0) / 100
    assert spans.min() > 1e-2 * 0.96
    assert spans.max() < 1e4 * 1.04
    # Log-uniform over six decades: 64 heads leave none of the outer thirds empty but for (2/3)^64 = 5e-12.
    assert spans.min() < 1
    assert spans.max() > 100
    assert (synthesise("gdn_prefill", **options, gate_span=(0.0, 5.0)).tensors["g"] <= 0).all()


@pytest.mark.parametrize(
    ("beta", "beta_max"), [(0.835, 1.0), ((0.2, 0.4), 1.0), ((0.0, 2.0), 2.0), (1.0, 1.0)]
)
def test_beta(beta: float | tuple[float, float], beta_max: float) -> None:
    call = synthesise("gdn_prefill", seqlens=(500,), head_dim=(4, 4), beta=beta)
    low, high = beta if isinstance(beta, tuple) else (beta, beta)
    values = call.tensors["beta"]
    # The ends themselves are fp32 numbers.
    assert values.min() >= torch.tensor(low)
    assert values.max() <= torch.tensor(high)
    assert values.max() - values.min() >= 0.95 * (high - low)
    assert call.scalars["beta_max"] == beta_max


def test_normalised_and_raw_keys() -> None:
    normalised, raw = (
        synthesise("gdn_prefill", seqlens=(9,), qk=qk, dtype="float32").tensors["q"].norm(dim=-1)
        for qk in ("normalised", "raw")
    )
    torch.testing.assert_close(normalised, torch.ones(9, 2), rtol=1e-5, atol=0)
    # A standard normal vector of 128 has norm sqrt(128), give or take 1 / sqrt(2); six times that.
    assert (raw - math.sqrt(128)).abs().max() < 6 / math.sqrt(2)


def test_decode_slots_are_dealt_without_repeats() -> None:
    call = synthesise(
        "gdn_decode", batch=8, steps=3, slots=30, padding=0.3, speculative=True, head_dim=(4, 4)
    )
    indices = call.tensors["state_indices"]
    padded = (indices == -1).all(1)
    assert int(padded.sum()) == 2  # 0.3 of 8, rounded down
    used = indices[~padded].flatten().tolist()
    assert len(set(used)) == len(used) == 18
    assert call.tensors["state"].shape == (30, 4, 4, 4)
    assert set(call.tensors["num_accepted"].tolist()) <= {1, 2, 3}


@pytest.mark.parametrize(
    ("op", "options", "message"),
    [
        (
            "gdn_prefill",
            {"speed": 1},
            wording(
                "synth.option-unknown",
                operation="gdn_prefill",
                option="speed",
                known="seed, seqlens, heads, head_dim",  # the nearest first
            ),
        ),
        ("gdn_prefill", {"seqlens": (3, -1)}, wording("kernels.length-negative", length=-1)),
        (
            "gdn_prefill",
            {"key_correlation": 1.5},
            wording("kernels.key-correlation", what="key", correlation="1.5"),
        ),
        (
            "gdn_decode",
            {"query_correlation": -1.0},
            wording("kernels.key-correlation", what="query", correlation="-1"),
        ),
        ("swa_decode", {"stale": "dead"}, wording("kernels.stale-entries", stale="dead")),
        ("swa_decode", {"sink_spread": -1.0}, wording("kernels.sink-spread", sink_spread="-1")),
        (
            "gdn_prefill",
            {"gate_span": (5.0, 1.0)},
            wording("kernels.range-wrong", low=5, high=1),
        ),
        ("gdn_prefill", {"beta": 2.5}, wording("kernels.beta-high", high="2.5")),
        (
            "gdn_prefill",
            {"heads": (2, 3)},
            "gdn_prefill: " + wording("kernels.head-multiple", value_heads=3, heads=2),
        ),
        (
            "gdn_prefill",
            {"dtype": "int8"},
            wording(
                "kernels.option-word", option="dtype", value="int8", known="bfloat16 or float16 or float32"
            ),
        ),
        (
            "gdn_prefill",
            {"offsets_dtype": "int8"},
            wording("kernels.option-word", option="offsets_dtype", value="int8", known="int32 or int64"),
        ),
        (
            "gdn_prefill",
            {"gate": "exp"},
            "gdn_prefill: "
            + wording("kernels.convention-value", convention="gate", value="exp", known="log or linear"),
        ),
        (
            "gdn_prefill",
            {"nan_at": (700,)},
            "gdn_prefill: " + wording("kernels.nan-place", what="token", row=700, count=693),
        ),
        (
            "gdn_decode",
            {"nan_at": (4,)},
            "gdn_decode: " + wording("kernels.nan-place", what="sequence", row=4, count=4),
        ),
        ("gdn_decode", {"padding": 2.0}, wording("kernels.share-range", name="padding", share=2)),
        ("gdn_decode", {"slots": 3}, wording("kernels.pool-small", slots=3, active=4, needed=4)),
        (
            "gdn_scan",
            {},
            wording("ops.operation-unknown", name="gdn_scan", known="conv_decode, conv_prefill"),
        ),
    ],
)
def test_options_are_checked(op: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError) as refused:
        synthesise(op, **options)
    assert re.match(message, str(refused.value))


def test_options_from_text() -> None:
    texts = {
        "seqlens": "1,63,500",
        "heads": "2,4",
        "key_correlation": "0.9",
        "gate_span": "1e-3,1e5",
        "beta": "0.835",
        "initial_state": "true",
        "gate": "linear",
        "nan_at": "",
        "seed": "3",
    }
    assert options_from_text("gdn_prefill", texts) == {
        "seqlens": (1, 63, 500),
        "heads": (2, 4),
        "key_correlation": 0.9,
        "gate_span": (1e-3, 1e5),
        "beta": 0.835,
        "initial_state": True,
        "gate": "linear",
        "nan_at": (),
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("seqlens", "1,x", wording("options.list", kind="'1,x' is not integers")),
        ("heads", "2", wording("options.pair", count="'2' is", kind="not 2 integers")),
        ("beta", "a", wording("options.pair", count="'a' is", kind="not a number or 2 numbers")),
        ("initial_state", "maybe", "'maybe' is not true or false"),
        ("seed", "1.5", r"'1\.5' is not an integer"),
    ],
)
def test_text_that_is_no_option_is_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(BadInputError) as refused:
        options_from_text("gdn_prefill", {name: text})
    assert re.fullmatch(f"gdn_prefill option {name}: {message}", str(refused.value))


def test_unknown_option_in_text_is_refused() -> None:
    with pytest.raises(
        BadInputError,
        match=wording("synth.option-unknown", operation="gdn_decode", option="seqlens", known="batch, steps"),
    ):
        options_from_text("gdn_decode", {"seqlens": "1"})


def test_prefill_draft() -> None:
    call = synthesise("gdn_prefill", seqlens=(5, 0), head_dim=(8, 4), initial_state=True, state_layout="KV")
    record = draft("gdn_prefill", call, index=3)
    assert (record.info.op, record.info.call, record.info.step) == ("gdn_prefill", 3, 3)
    assert record.info.status is Status.COMPLETE
    assert record.info.conventions == {
        "gate": "log",
        "state_layout": "KV",
        "qk": "normalised",
        "offsets": "any",
    }
    assert record.info.scalars == {
        "scale": None,
        "chunk_size": 64,
        "output_final_state": True,
        "final_state_dtype": None,
        "beta_max": 1.0,
    }
    assert set(record.before) == set(call.tensors)
    assert set(record.after) == {"o", "final_state"}
    final = record.after["final_state"]
    assert final.meta.axes == ("N", "Hv", "K", "V")
    assert final.meta.shape == tuple(final.data.shape) == (2, 4, 8, 4)
    assert final.data.is_contiguous()
    # A sequence without tokens leaves its state as it was.
    assert final.data[1].equal(call.tensors["initial_state"][1])


def test_decode_draft_keeps_only_touched_slots() -> None:
    call = synthesise("gdn_decode", batch=3, slots=9, head_dim=(8, 4), padding=0.4)
    before = call.tensors["state"].clone()
    record = draft("gdn_decode", call)
    slots = sorted(set(call.tensors["state_indices"].flatten().tolist()) - {-1})
    pool = record.info.pools["state"]
    assert (pool.slots, list(pool.rows)) == (9, slots)
    others = torch.tensor([slot for slot in range(9) if slot not in slots])
    assert pool.untouched_before == pool.untouched_after == digits(checksum(before, others))
    assert record.before["state"].data.equal(before[slots])
    assert record.before["state"].meta.caller_shape == (9, 4, 4, 8)
    assert not record.after["state"].data.equal(before[slots])
    assert call.tensors["state"].equal(before)
