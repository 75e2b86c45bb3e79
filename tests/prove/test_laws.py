# SPDX-License-Identifier: Apache-2.0
"""Laws hold for the fp64 oracles, whose errors are nothing; and a difference is held to its limit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.ops import operation
from gdnbench.prove.laws import Exact, differences
from gdnbench.prove.records import read_made
from gdnbench.synth import synthesise
from gdnbench_kernels.contract import Call, Piece, Variant
from gdnbench_kernels.run import run_kernel
from tests.messages import wording

CALLS: dict[str, dict[str, Any]] = {
    "packed": {
        "op": "gdn_prefill",
        "seqlens": (70, 0, 20, 130),
        "heads": (1, 2),
        "head_dim": (8, 8),
        "initial_state": True,
    },
    "one sequence, other conventions": {
        "op": "gdn_prefill",
        "seqlens": (140,),
        "heads": (1, 1),
        "head_dim": (8, 4),
        "gate": "linear",
        "state_layout": "KV",
        "qk": "raw",
        "beta": (0.0, 2.0),
    },
    "float16": {"op": "gdn_prefill", "seqlens": (20, 3), "head_dim": (8, 8), "dtype": "float16"},
    "drafts": {
        "op": "gdn_decode",
        "batch": 4,
        "steps": 4,
        "heads": (1, 2),
        "head_dim": (8, 8),
        "speculative": True,
        "padding": 0.25,
        "slots": 30,
    },
    "drafts, holes, raw gates": {
        "op": "gdn_decode",
        "batch": 3,
        "steps": 3,
        "heads": (1, 2),
        "head_dim": (8, 8),
        "holes": 0.5,
        "gate": "raw",
        "qk": "raw",
        "state_layout": "KV",
        "slot_gap": 8,
    },
    "a shared slot": {
        "op": "gdn_decode",
        "batch": 3,
        "steps": 2,
        "heads": (1, 2),
        "head_dim": (8, 8),
        "read_indices": "shared",
        "gate": "linear",
    },
    "KDA": {
        "op": "kda_prefill",
        "seqlens": (100, 0, 20),
        "heads": (1, 2),
        "head_dim": (8, 8),
        "initial_state": True,
        "gate": "bounded",
        "beta_form": "logit",
        "chunk_tables": True,
    },
    "KDA in float16": {
        "op": "kda_prefill",
        "seqlens": (40,),
        "heads": (1, 1),
        "head_dim": (8, 8),
        "dtype": "float16",
    },
    "KDA drafts, padding": {
        "op": "kda_decode",
        "batch": 4,
        "steps": 3,
        "heads": (1, 2),
        "head_dim": (8, 8),
        "padding": 0.25,
        "speculative": True,
        "gate": "raw",
        "state_layout": "KV",
        "slots": 20,
        "scale": -0.3,
    },
    "KDA, large states": {
        "op": "kda_decode",
        "batch": 2,
        "steps": 1,
        "heads": (1, 1),
        "head_dim": (8, 8),
        "state_scale": 1e33,
    },
    "per token": {"op": "swa_decode", "lens": (0, 5, 128, 1), "heads": 4, "sink": 0.0},
    "ds_mla": {
        "op": "swa_decode",
        "lens": (17, 128),
        "heads": 4,
        "cache_layout": "fp8_ds_mla",
        "holes": 0.2,
        "stale": "live",
        "index_shape": "1TW",
    },
    "bfloat16": {
        "op": "swa_decode",
        "lens": (17, 128),
        "heads": 4,
        "cache_layout": "bfloat16",
        "block_size": 16,
        "index_shape": "T1W",
    },
    "top-k, drafts": {
        "op": "v4_decode",
        "lens": (17, 0, 127),
        "extra_lens": (9, 20, 0),
        "topk": 24,
        "queries": 2,
        "heads": 2,
        "holes": 0.2,
        "duplicates": 0.2,
        "packed": True,
        "cache_layout": "fp8_ds_mla",
    },
    "pages, one length a request": {
        "op": "v4_decode",
        "lens": (17, 128),
        "extra_lens": (9, 130),
        "queries": 2,
        "heads": 2,
        "extra_index_form": "block_table",
        "extra_block_size": 2,
        "extra_layout": "bfloat16",
        "index_shape": "T1W",
        "lens_shape": "B",
        "masked_indices": "legal",
        "sink": 0.0,
    },
    "a window alone": {
        "op": "v4_decode",
        "lens": (17, 128),
        "extra_lens": (),
        "heads": 2,
        "index_shape": "TW",
        "lens_shape": "T",
        "lse_base": "2",
        "lse_sink": "with",
        "lse_empty": "plus_inf",
        "sink": 0.0,
    },
}


def made(name: str) -> tuple[Any, Call]:
    options = dict(CALLS[name])
    op = options.pop("op")
    return operation(op), synthesise(op, **options)


def variants(name: str) -> dict[str, Variant]:
    found, call = made(name)
    assert found.laws is not None
    return {variant.what: variant for variant in found.laws.variants(found, call)}


def largest_difference(piece: Piece, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    x, y = one[piece.tensor][piece.one], other[piece.tensor][piece.other] / piece.factor
    assert x.shape == y.shape
    same = (x == y) | (x.isnan() & y.isnan())
    return float(torch.where(same, 0.0, (x - y).abs()).max()) if x.numel() else 0.0


def largest_value(x: Tensor) -> float:
    finite = x[x.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CALLS)
def test_variants_are_valid_and_the_oracle_keeps_the_laws(name: str) -> None:
    found, call = made(name)
    whole = run_kernel(found, "reference", call)
    for variant in variants(name).values():
        found.validate(variant.call)
        assert variant.pieces
        results = run_kernel(found, "reference", variant.call)
        for piece in variant.pieces:
            # fp64 sums in another order: values up to about 100, some 1e3 operations. Powers of two change no
            # rounding in fp64, whose exponents are far from their ends.
            limit = 0.0 if variant.exact else 1e-10 * max(1.0, largest_value(whole[piece.tensor]))
            assert largest_difference(piece, whole, results) <= limit, (variant.what, piece)


@pytest.mark.parametrize(
    "name", [name for name in CALLS if CALLS[name]["op"] not in ("swa_decode", "v4_decode")]
)
def test_splits_are_valid_and_the_oracle_keeps_them(name: str) -> None:
    found, call = made(name)
    assert found.laws is not None
    assert found.laws.splits is not None
    whole = run_kernel(found, "reference", call)
    for split in found.laws.splits(found, call):
        found.validate(split.first)
        first = run_kernel(found, "reference", split.first)
        stored = {
            spec.name: first[spec.name].to(run_kernel(found, "torch", split.first)[spec.name].dtype)
            for spec in found.tensors
            if spec.name in first
        }
        second = split.second(stored)
        found.validate(second)
        results = run_kernel(found, "reference", second)
        for piece in split.first_pieces:
            assert largest_difference(piece, whole, first) < 1e-10
        for piece in split.second_pieces:
            # The states between are rounded to fp32: 2^-24 of values up to about 10.
            assert largest_difference(piece, whole, results) < 1e-5, (split.what, piece)


@pytest.mark.parametrize(
    ("name", "factor", "exact"),
    [("packed", 1024.0, True), ("KDA in float16", 1024.0, False), ("KDA, large states", 2.0**-10, True)],
)
def test_v_and_states_are_scaled_by_a_power_of_two(name: str, factor: float, exact: bool) -> None:
    _, call = made(name)
    (variant,) = (one for what, one in variants(name).items() if what.startswith("v and states"))
    assert variant.exact is exact
    for tensor in ("v", "state", "initial_state"):
        if tensor in call.tensors:
            assert variant.call.tensors[tensor].equal(call.tensors[tensor] * factor)
    assert all(piece.factor == factor for piece in variant.pieces)


def test_the_scale_is_four_times_that_of_the_call_or_the_default() -> None:
    for name, scale in (("KDA drafts, padding", -0.3), ("packed", 8**-0.5)):
        (variant,) = (one for what, one in variants(name).items() if what == "4 x the scale")
        assert variant.call.scalars["scale"] == pytest.approx(4 * scale)
        assert {piece.factor for piece in variant.pieces if piece.tensor == "o"} == {4.0}
        assert {piece.factor for piece in variant.pieces if piece.tensor != "o"} == {1.0}


def test_padding_holds_nan_and_nothing_else_does() -> None:
    for name in ("packed", "KDA", "drafts", "a shared slot", "KDA drafts, padding"):
        found, call = made(name)
        (variant,) = (one for one in variants(name).values() if one.law == "padding")
        theirs = variant.call.tensors
        if "cu_seqlens" in theirs:
            assert theirs["cu_seqlens"].tolist()[:2] == [0, 0]
            assert int(theirs["cu_seqlens"][-1]) == len(call.tensors["v"]) + 5
            nan = torch.arange(len(theirs["v"])) >= len(call.tensors["v"])
        else:
            nan = torch.ones(len(theirs["v"]), dtype=torch.bool)
            nan[[region.sequence for region in found.partition(variant.call, "o").regions]] = False
            assert nan.any()
        for tensor in ("q", "k", "v", "g", "beta"):
            assert theirs[tensor].isnan().flatten(1).all(1).equal(nan)


def test_which_laws_a_call_has() -> None:
    def laws(name: str) -> list[str]:
        return [variant.law for variant in variants(name).values()]

    scaled = ["padding", "scale", "scale"]
    assert laws("packed") == ["causality", "causality", "causality", "sequences", "order", *scaled]
    assert laws("one sequence, other conventions") == ["causality", "causality", "causality", *scaled]
    assert laws("drafts") == ["causality", "sequences", "order", *scaled, "unnamed slots"]
    assert laws("KDA drafts, padding") == laws("drafts")
    assert laws("KDA") == laws("packed")
    assert laws("per token") == ["requests", "order", "pages", "unread slots"]
    assert [place for place in variants("packed") if "border" in place]


def test_the_changed_part_changes_and_by_much() -> None:
    """A law that changes nothing says nothing: tokens from P on have other values, v 2^8 times as large."""
    _, call = made("packed")
    for what, variant in variants("packed").items():
        if variant.law not in ("causality", "sequences"):
            continue
        v, changed = call.tensors["v"], variant.call.tensors["v"]
        moved = (v != changed).any(-1).any(-1)
        assert moved.any(), what
        assert float(changed[moved].float().std() / v[moved].float().std()) == pytest.approx(256, rel=0.3)
        named = [piece for piece in variant.pieces if piece.tensor == "o"]
        kept = torch.zeros(len(v), dtype=torch.bool)
        for piece in named:
            kept[piece.one] = True
        assert not (kept & moved).any()
        assert (kept | moved).all()


def test_float16_stays_finite() -> None:
    for variant in variants("float16").values():
        if variant.law == "padding":
            continue
        assert all(tensor.isfinite().all() for tensor in variant.call.tensors.values())


def test_unread_slots_are_finite_and_stale_entries_live() -> None:
    _, call = made("per token")
    assert call.tensors["inv_scale"].isnan().any()
    (variant,) = (one for one in variants("per token").values() if one.law == "unread slots")
    assert variant.call.tensors["inv_scale"].isfinite().all()
    assert not (variant.call.tensors["cache"].view(torch.uint8) == 0xFF).any()
    slots = len(variant.call.tensors["inv_scale"])
    assert (variant.call.tensors["swa_indices"] < slots).all()


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "op", ["gdn_prefill", "gdn_decode", "kda_prefill", "kda_decode", "swa_decode", "v4_decode"]
)
def test_the_made_records_for_laws_have_each_law(op: str) -> None:
    found = operation(op)
    assert found.laws is not None
    seen: set[str] = set()
    for record in read_made():
        if record.op == op and record.laws and record.sim:
            call = record.call()
            seen |= {variant.law for variant in found.laws.variants(found, call)}
            if found.laws.splits is not None and list(found.laws.splits(found, call)):
                seen.add("split")
    expected = {
        "gdn_prefill": {"causality", "sequences", "order", "padding", "scale", "split"},
        "gdn_decode": {"causality", "sequences", "order", "padding", "scale", "unnamed slots", "split"},
        "kda_prefill": {"causality", "sequences", "order", "padding", "scale", "split"},
        "kda_decode": {"causality", "sequences", "order", "padding", "scale", "unnamed slots", "split"},
        "swa_decode": {"requests", "order", "pages", "unread slots"},
        "v4_decode": {"requests", "order", "pages", "unread slots", "empty segment"},
    }
    assert seen == expected[op]


PIECE = Piece("o", "sequence 0", (slice(0, 4),), (slice(0, 4),), head_axis=1)


class Known(Exact):
    """Limits by hand: RMS 1e-3, largest 1e-2 of each head; all elements but one are finite."""

    def limits(self, *where: Any) -> tuple[Tensor, Tensor]:
        return torch.tensor([1e-3, 1e-3]), torch.tensor([1e-2, 1e-2])

    def finite(self, *where: Any) -> Tensor:
        usable = torch.ones(4, 2, 100, dtype=torch.bool)
        usable[3, 1, 99] = False
        return usable


def moved(
    at: tuple[int, int, int] | slice, by: float, bits: bool = False, piece: Piece = PIECE, value: float = 0.0
) -> Any:
    one = torch.full((4, 2, 100), value)
    other = one * piece.factor
    other[at] += by
    exact = Known(operation("gdn_prefill"), Call({}, {}, {}), {})
    return differences([piece], {"o": one}, {"o": other}, exact, bits=bits)


def test_equal_results_have_no_difference() -> None:
    assert moved(slice(0, 0), 0.0) == []


def test_twice_the_limit_is_allowed_and_more_is_not() -> None:
    (within,) = moved(slice(None), 1.99e-3)
    assert not within.wrong
    assert within.ratio == pytest.approx(0.995, rel=1e-3)
    (beyond,) = moved(slice(None), 2.01e-3)
    assert beyond.wrong
    difference = wording(
        "prove.difference",
        tensor="o",
        where="sequence 0",
        what="RMS",
        head=0,
        error="0.00201",
        limit=re.compile(r"0\.002.*"),
    )
    assert re.fullmatch(difference, beyond.text)


def test_one_element_is_held_to_the_largest_error() -> None:
    (within,) = moved((2, 1, 5), 1.9e-2)
    assert not within.wrong
    (beyond,) = moved((2, 1, 5), 2.1e-2)
    assert beyond.wrong
    assert "largest difference of head 1" in beyond.text


def test_nan_in_one_call_is_a_difference_unless_the_oracle_is_not_finite() -> None:
    (beyond,) = moved((2, 1, 5), float("nan"))
    assert beyond.wrong
    what, first = re.compile(wording("prove.nonfinite")), [2, 1, 5]
    assert re.search(
        wording("prove.unequal", count=1, of=800, what=what, first=first, one=0, other="nan"), beyond.text
    )
    (excused,) = moved((3, 1, 99), float("nan"))
    assert not excused.wrong


def test_exact_laws_allow_nothing() -> None:
    (wrong,) = moved((0, 0, 7), 1e-7, bits=True)
    assert wrong.wrong
    assert "1 of 800 elements differ, first [0, 0, 7]: 0 and 1.00000001e-07" in wrong.text


def test_rows_that_are_a_multiple_are_divided_by_it_first() -> None:
    piece = replace(PIECE, factor=1024.0)
    assert moved(slice(0, 0), 0.0, piece=piece, value=0.3) == []
    assert moved(slice(0, 0), 0.0, bits=True, piece=piece, value=0.3) == []
    (within,) = moved(slice(None), 1024 * 1.99e-3, piece=piece)
    (beyond,) = moved(slice(None), 1024 * 2.01e-3, piece=piece)
    assert (within.wrong, beyond.wrong) == (False, True)
    assert len(moved(slice(0, 0), 0.0, piece=replace(PIECE, factor=1.0), value=0.3)) == 0


def test_exact_laws_allow_underflow_where_a_piece_says_so() -> None:
    piece = replace(PIECE, factor=4.0, underflow=2.0**-100)
    assert moved((0, 0, 7), 4 * 2.0**-100, bits=True, piece=piece) == []
    (beyond,) = moved((0, 0, 7), 8 * 2.0**-100, bits=True, piece=piece)
    assert beyond.wrong
    (nan,) = moved((0, 0, 7), float("nan"), bits=True, piece=piece)
    assert nan.wrong


def test_limits_are_twice_torchs_error_plus_rounding() -> None:
    """Of a call whose torch error is computed here from the two kernels' results; without the leeway, which
    is added."""
    given, call = made("packed")
    found = replace(given, leeway=lambda call, output: None)
    oracle, torchs = (run_kernel(found, kernel, call)["o"].double() for kernel in ("reference", "torch"))
    rows = oracle[:70, 1], torchs[:70, 1]
    unit = 2.0**-8  # of bfloat16, which has 8 bits
    expected = 2 * (rows[1] - rows[0]).square().mean().sqrt() + unit * rows[0].square().mean().sqrt()
    rms, _ = Exact(found, call, {}).limits("o", (slice(0, 70),), 1, torch.bfloat16)
    assert float(rms[1]) == pytest.approx(float(expected), rel=1e-6)
    added = given.leeway(call, "o")
    assert added is not None
    more, _ = Exact(given, call, {}).limits("o", (slice(0, 70),), 1, torch.bfloat16)
    assert float(more[1] - rms[1]) == pytest.approx(float(added[:70, 1].square().mean().sqrt()), rel=1e-6)


def test_lse_has_the_contracts_tolerance() -> None:
    found, call = made("per token")
    lse = run_kernel(found, "reference", call)["lse"][2]
    _, largest = Exact(found, call, {}).limits("lse", (2,), 0, torch.float32)
    assert torch.allclose(largest, 1e-3 + 2.0**-16 * lse.abs(), rtol=1e-12, atol=0)
