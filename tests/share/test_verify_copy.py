# SPDX-License-Identifier: Apache-2.0
"""A copy is made exactly where it fails as its source does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.errors import BadInputError
from gdnbench.record import RecordDraft
from gdnbench.report.outcome import Outcome
from gdnbench.share.share import Shared, share
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from gdnbench.synth import draft, synthesise
from tests.messages import wording
from tests.share import share_samples
from tests.share.share_samples import decode, keep, prefill, with_a_large_feature

Made = Callable[..., Shared]
FEATURE = f"{share_samples.__file__}:trips_on_a_feature"
RAISES = f"{share_samples.__file__}:raises_by_feature"
NEWTON = f"{share_samples.__file__}:newton"
"""Wrong for correlated keys alone: facts of the inverse, docs/inverse.md."""


def replays(kernel: str, **options: Any) -> dict[str, Any]:
    return {"kernel": kernel, "isolate": False, **options}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """`made(drafts, hide, replays)`: shares a store of those records to copy.zarr."""

    def share_them(drafts: list[RecordDraft], hide: str, options: dict[str, Any] | None) -> Shared:
        with Store.open(keep(tmp_path / "s.zarr", drafts)) as source:
            return share(source, tmp_path / "copy.zarr", range(len(drafts)), hide=hide, replays=options)

    return share_them


@pytest.mark.every(2)
@pytest.mark.parametrize("hide", ["nothing", "rotation", "permutation", "synthetic"])
def test_a_failure_of_the_inverse_survives(hide: str, made: Made, tmp_path: Path) -> None:
    """Of correlated keys and of random ones: the kernel fails on the first alone, in source and copy."""
    found = made([prefill(0.95), prefill(0.0, 1)], hide, replays(NEWTON))
    assert not found.lost
    outcomes = [(one.source.outcome, one.copy.outcome) for one in found.shown]
    assert outcomes == [(Outcome.MISMATCH,) * 2, (Outcome.PASS,) * 2]
    assert {ours.tensor for ours, _ in found.shown[0].failing} >= {"o", "final_state"}
    assert verify(tmp_path / "copy.zarr").ok
    with Store.open(tmp_path / "s.zarr") as source, Store.open(tmp_path / "copy.zarr") as copy:
        for ours, theirs in zip(source.records, copy.records, strict=True):
            same = {name for name in ours.before if ours.before[name].digest == theirs.before[name].digest}
            moved = {"q", "k", "v", "initial_state"}
            assert same == set(ours.before) - (set() if hide == "nothing" else moved)


@pytest.mark.parametrize("hide", ["rotation", "permutation", "synthetic"])
def test_a_kernel_that_passes_does_so_on_the_copy(hide: str, made: Made) -> None:
    found = made(
        [prefill(0.95), decode(), decode(gate="raw", qk="raw", state_layout="KV")], hide, replays("torch")
    )
    assert not found.lost
    assert {one.copy.outcome for one in found.shown} == {Outcome.PASS}


def test_a_failure_of_one_feature_is_lost_by_rotation_and_nothing_is_written(
    made: Made, tmp_path: Path
) -> None:
    found = made([with_a_large_feature(prefill(0.0))], "rotation", replays(FEATURE))
    assert len(found.lost) == 1
    differ = wording("share.outcomes-differ", source="numeric mismatch", copy="pass")
    assert re.search(f"record 0: {differ}", found.lost[0])
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


def test_another_crash_is_not_the_same_failure(made: Made, tmp_path: Path) -> None:
    found = made([with_a_large_feature(prefill(0.0))], "rotation", replays(RAISES))
    differ = wording("share.outcomes-differ", source="KeyError", copy="ValueError")
    assert re.search(differ, found.lost[0])
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


def test_it_is_kept_where_elements_are(made: Made) -> None:
    found = made([with_a_large_feature(prefill(0.0))], "nothing", replays(FEATURE))
    assert not found.lost
    assert found.shown[0].copy.outcome is Outcome.MISMATCH


def test_permuted_records_still_have_what_was_recorded(made: Made, tmp_path: Path) -> None:
    """Without a kernel: torch's comes out as it was recorded, and outputs are the source's, moved."""
    found = made([prefill(0.5), decode()], "permutation", None)
    assert not found.lost
    with Store.open(tmp_path / "s.zarr") as source, Store.open(tmp_path / "copy.zarr") as copy:
        for ours, theirs in zip(source.records, copy.records, strict=True):
            one, other = ours.after["o"].read(), theirs.after["o"].read()
            assert not torch.equal(one, other)
            assert torch.equal(one.abs().sort(dim=-1).values, other.abs().sort(dim=-1).values)


@pytest.mark.parametrize("layout", ["per_token_scale", "fp8_ds_mla", "bfloat16"])
def test_windows_are_permuted(layout: str, made: Made) -> None:
    call = synthesise("swa_decode", lens=(17, 3), heads=2, cache_layout=layout)
    found = made([draft("swa_decode", call)], "permutation", replays("torch"))
    assert not found.lost


@pytest.mark.every(3)
@pytest.mark.parametrize("layout", ["per_token_scale", "fp8_ds_mla", "bfloat16"])
@pytest.mark.parametrize("extra", ["per_token_scale", "fp8_ds_mla", "bfloat16"])
def test_both_segments_are_permuted_alike(layout: str, extra: str, made: Made) -> None:
    options = {"lens": (17, 3), "extra_lens": (9, 4), "topk": 12, "heads": 2}
    call = synthesise("v4_decode", **options, cache_layout=layout, extra_layout=extra)
    found = made([draft("v4_decode", call)], "permutation", replays("torch"))
    assert not found.lost


def test_windows_are_rotated_where_nothing_is_quantised(made: Made) -> None:
    call = synthesise("swa_decode", lens=(17, 3), heads=2, cache_layout="bfloat16")
    assert not made([draft("swa_decode", call)], "rotation", replays("torch")).lost


def test_both_segments_are_rotated_where_nothing_is_quantised(made: Made) -> None:
    layouts = {"cache_layout": "bfloat16", "extra_layout": "bfloat16"}
    options = {"lens": (17, 3), "extra_lens": (9, 4), "topk": 12, "heads": 2}
    calls = [synthesise("v4_decode", **options, **layouts)]
    calls.append(synthesise("v4_decode", **{**options, "extra_lens": ()}, cache_layout="bfloat16"))
    assert not made([draft("v4_decode", call) for call in calls], "rotation", replays("torch")).lost


def test_a_quantised_extra_segment_is_not_rotated(made: Made) -> None:
    options = {"lens": (17, 3), "extra_lens": (9, 4), "topk": 12, "heads": 2}
    quantised = synthesise("v4_decode", **options, cache_layout="bfloat16", extra_layout="fp8_ds_mla")
    with pytest.raises(BadInputError, match=wording("share.rotation-cache", layout="fp8_ds_mla")):
        made([draft("v4_decode", quantised)], "rotation", replays("torch"))


@pytest.mark.parametrize(
    ("hide", "layout", "says"),
    [
        ("rotation", "fp8_ds_mla", wording("share.rotation-cache")),
        ("rotation", "per_token_scale", wording("share.rotation-cache")),
        ("synthetic", "bfloat16", "gdn_prefill and gdn_decode"),
    ],
)
def test_windows_that_cannot_be_hidden_so(
    hide: str, layout: str, says: str, made: Made, tmp_path: Path
) -> None:
    call = synthesise("swa_decode", lens=(17, 3), heads=2, cache_layout=layout)
    with pytest.raises(BadInputError, match=says):
        made([draft("swa_decode", call)], hide, replays("torch"))
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


def test_synthetic_keeps_gates_and_products_of_keys(made: Made, tmp_path: Path) -> None:
    assert not made([prefill(0.9)], "synthetic", replays("torch")).lost
    with Store.open(tmp_path / "s.zarr") as source, Store.open(tmp_path / "copy.zarr") as copy:
        (ours,), (theirs,) = source.records, copy.records
        assert not theirs.after
        a, b = ({name: one.before[name].read().double() for name in ours.before} for one in (ours, theirs))
    # Keys [T, 1, 32] of norm 1 are rounded to bfloat16 again: each by 2^-9 of itself, so each key by a vector
    # of at most 2^-9, and a product of two by 2 * 2^-9 + 2^-18.
    gram = (a["k"][:, 0] @ a["k"][:, 0].T) - (b["k"][:, 0] @ b["k"][:, 0].T)
    assert float(gram.abs().max()) < 2.0**-7.9
    for name, axes in {"q": (-1,), "v": (-1,), "initial_state": (-2, -1)}.items():
        norms, found = (torch.linalg.vector_norm(x[name], dim=axes) for x in (a, b))
        # Rounded to bfloat16, or to fp32.
        assert float((found / norms - 1).abs().max()) < 2.0**-8.9
        cosine = torch.nn.functional.cosine_similarity(a[name].flatten(), b[name].flatten(), dim=0)
        # Of 1024 elements or more in random directions: 1/32 at one deviation.
        assert abs(float(cosine)) < 0.5


@pytest.mark.parametrize("hide", ["rotation", "permutation", "synthetic"])
def test_a_call_without_tokens_is_hidden_too(hide: str, made: Made) -> None:
    call = synthesise("gdn_prefill", seqlens=(0,), heads=(1, 2), head_dim=(32, 32))
    assert not made([draft("gdn_prefill", call)], hide, replays("torch")).lost


@pytest.mark.parametrize("hide", ["rotation", "permutation"])
def test_a_record_without_keys_is_refused(hide: str, made: Made) -> None:
    record = decode()
    left = {name: tensor for name, tensor in record.before.items() if name != "k"}
    with pytest.raises(BadInputError, match=wording("share.keys-missing")):
        made([replace(record, before=left)], hide, replays("torch"))


@pytest.mark.parametrize("hide", ["rotation", "synthetic"])
def test_a_kernel_has_to_be_named(hide: str, made: Made) -> None:
    with pytest.raises(BadInputError, match="--kernel"):
        made([decode()], hide, None)
