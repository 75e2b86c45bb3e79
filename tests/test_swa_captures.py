# SPDX-License-Identifier: Apache-2.0
"""The shipped captures of sliding-window attention: what they hold, and that kernels replay them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gdnbench.judge.calls import compact_call
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import ReplayReport
from gdnbench.store.reader import Store
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode.layouts import read_rows

FOLDER = Path(__file__).resolve().parents[1] / "captures"

# As captures/README.md has them: swa_lens of each record, and how many entries of each row are no padding.
LENS = [[17], [128, 128, 128], [128, 128, 128]]
ATTENDED = [[17], [18, 61, 128], [128, 128, 128]]
CONTENTS = {
    "per_token_scale": (LENS, ATTENDED),
    "fp8_ds_mla": (LENS, ATTENDED),
    "bfloat16": (LENS[1:2], ATTENDED[1:2]),
}
QUANTISED = ("per_token_scale", "fp8_ds_mla")
UNIT = 2.0**-8
"""The largest relative error of rounding to bfloat16, whose significands have 8 bits."""


def opened(layout: str) -> Store:
    return Store.open(FOLDER / f"swa_{layout}.zarr.zip")


@pytest.fixture(params=CONTENTS)
def shipped(request: pytest.FixtureRequest) -> Iterator[tuple[str, Store]]:
    with opened(request.param) as store:
        yield request.param, store


def calls(store: Store) -> list[Call]:
    return [compact_call(record, operation("swa_decode"), torch.device("cpu")) for record in store.records]


def windows(call: Call) -> list[Tensor]:
    """The slots that each row attends to, ascending."""
    lens = call.tensors["swa_lens"].tolist()
    rows = zip(call.tensors["swa_indices"].long(), lens, strict=True)
    return [row[:length][row[:length] >= 0] for row, length in rows]


def latent(call: Call, slots: Tensor, layout: str) -> Tensor:
    return read_rows(call.tensors["cache"], call.tensors.get("inv_scale"), slots, layout, torch.float64)


def test_contents(shipped: tuple[str, Store]) -> None:
    layout, store = shipped
    lens, attended = CONTENTS[layout]
    found = calls(store)
    assert [call.tensors["swa_lens"].tolist() for call in found] == lens
    assert [[len(window) for window in windows(call)] for call in found] == attended
    for record, call in zip(store.records, found, strict=True):
        assert record.info.op == "swa_decode"
        assert record.info.conventions == {"cache_layout": layout, "index_shape": "TW"}
        assert call.tensors["q"].shape[1:] == (16, 512)
        assert call.tensors["cache"].shape[1] == 64
        assert record.info.dispatch["path"] == "decode"
        assert ("o" in record.after) == (layout == "bfloat16")
        provenance = record.segment.provenance
        assert provenance["gpus"] == ["NVIDIA H200"]
        assert provenance["packages"]["transformers"] == "5.23.0"


def test_sinks_were_trained(shipped: tuple[str, Store]) -> None:
    # The library makes them zero.
    for call in calls(shipped[1]):
        sinks = call.tensors["attn_sink"]
        assert sinks.isfinite().all()
        assert (sinks != 0).all()
        assert len(sinks.unique()) == len(sinks)


def test_windows_are_the_last_tokens_of_each_request(shipped: tuple[str, Store]) -> None:
    """The model's cache has at most 128 rows a request; they lie in pages of the request's own."""
    for record, call in zip(shipped[1].records, calls(shipped[1]), strict=True):
        keys = record.info.dispatch["keys_as_called"]
        pages = -(-keys // 64)
        for row, window in enumerate(windows(call)):
            last = row * pages * 64 + keys - 1
            assert torch.equal(window, torch.arange(last - len(window) + 1, last + 1))


def test_layouts_hold_the_same_rows() -> None:
    """The same step in three layouts: queries alike bit for bit, values as near as e4m3 comes."""
    with opened("bfloat16") as exact, opened("per_token_scale") as token, opened("fp8_ds_mla") as mla:
        (want,), given = calls(exact), {"per_token_scale": calls(token)[1], "fp8_ds_mla": calls(mla)[1]}
    for name in ("q", "swa_indices", "swa_lens", "attn_sink"):
        assert all(torch.equal(want.tensors[name], call.tensors[name]) for call in given.values())
    slots = torch.cat(windows(want))
    values = latent(want, slots, "bfloat16")
    # e4m3 has 4 significand bits: 2^-4 of a value at most, or half of its least step 2^-9 times the scale.
    # The scale is at most amax / 448 for a token, 2 amax / 448 for a group of 64, each a power of two.
    # amax / 448 in fp32 is off by 2^-24, and so is the quotient: 2^-22 covers both.
    amax = values.abs().amax(1, keepdim=True)
    bound = torch.maximum(values.abs() * 2.0**-4, amax / 448 * 2.0**-10) * (1 + 2.0**-22)
    error = (latent(given["per_token_scale"], slots, "per_token_scale") - values).abs()
    assert (error <= bound).all()
    assert error.any()
    nope, rope = latent(given["fp8_ds_mla"], slots, "fp8_ds_mla").split((448, 64), dim=1)
    assert torch.equal(rope, values[:, 448:])
    groups = values[:, :448].unflatten(1, (7, 64))
    scale = 2 * groups.abs().amax(2, keepdim=True) / 448
    bound = torch.maximum(groups.abs() * 2.0**-4, scale * 2.0**-10).flatten(1)
    error = (nope - values[:, :448]).abs()
    assert (error <= bound).all()
    assert error.any()


def wrong(report: ReplayReport) -> list[tuple[int, Outcome, str | None]]:
    return [(r.number, r.outcome, r.reason) for r in report.records if r.outcome is not Outcome.PASS]


def test_replays(shipped: tuple[str, Store]) -> None:
    assert not wrong(replay(shipped[1], kernel="torch"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "kernel"), [(layout, kernel) for layout in QUANTISED for kernel in ("portable", "sm100")]
)
def test_replays_simulated(layout: str, kernel: str) -> None:
    with opened(layout) as store:
        assert not wrong(replay(store, kernel=kernel, on="sim"))


def attention(call: Call, window: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """(o [H, 512], the most that the model's own attention may differ from it), both fp64.

    The model multiplies in bfloat16: a score is rounded after the product and again after the scale, so it is
    off by at most 2 UNIT + UNIT^2 of itself, and by what fp32 sums of 512 products lose. With scores off by
    up to e[j], weights p[j] and the normaliser Z in [exp(-E), exp(E)], E = max e,

        o' - o = sum_j p[j] (exp(e[j]) - 1) (v[j] - o) / Z,

    as p and the sink's weight sum to 1. Then the weights, and o' itself, are rounded by UNIT.
    """
    q = call.tensors["q"][row].double()
    rows = latent(call, window, "bfloat16")
    scale = float(call.scalars["scale"])
    scores = q @ rows.T * scale
    every = torch.cat([scores, call.tensors["attn_sink"].double().unsqueeze(1)], dim=1)
    weights = torch.softmax(every, dim=1)[:, :-1]
    o = weights @ rows
    lost = 512 * 2.0**-24 * (q.abs() @ rows.abs().T) * scale
    off = scores.abs() * (2 * UNIT + UNIT**2) + lost
    largest = torch.exp(off.amax(1, keepdim=True))
    distance = (rows.unsqueeze(0) - o.unsqueeze(1)).abs()  # [H, window, 512]
    from_scores = torch.einsum("hw,hwd->hd", weights * torch.expm1(off), distance) * largest
    from_weights = (weights * torch.exp(off)) @ rows.abs() * largest * (UNIT + 512 * 2.0**-24)
    return o, (from_scores + from_weights + UNIT * o.abs()) * (1 + UNIT)


def test_recorded_output_is_what_the_model_computes() -> None:
    with opened("bfloat16") as store:
        (call,), (record,) = calls(store), store.records
        recorded = record.after["o"].read().double()
    for row, window in enumerate(windows(call)):
        o, bound = attention(call, window, row)
        assert ((recorded[row] - o).abs() <= bound).all()
        # The bound can tell: without the newest token of the window, or with one more row, it does not hold.
        for wrong in (window[:-1], torch.cat([window, window[:1]])):
            o, bound = attention(call, wrong, row)
            assert not ((recorded[row] - o).abs() <= bound).all()
