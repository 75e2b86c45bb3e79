# SPDX-License-Identifier: Apache-2.0
"""Replay and diff of swa_decode: pools kept by pages, pages that were not stored, an output of its own
tolerance."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.diff.compare import diff
from gdnbench.errors import BadInputError, Exit
from gdnbench.judge import calls
from gdnbench.judge.result import Side
from gdnbench.ops import operation
from gdnbench.record import Pool, RecordDraft, TensorDraft
from gdnbench.replay import bind
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench.store.recover import open_store
from gdnbench.store.verify import verify
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.swa_decode import layouts
from tests.messages import wording

StoreOf = Callable[..., Store]

OP = operation("swa_decode")
CPU = torch.device("cpu")
FAULTY = Path(__file__).parents[1] / "kernels" / "faulty_swa.py"
LAYOUTS = ("per_token_scale", "fp8_ds_mla", "bfloat16")
# 4 pages of 16 attended to at most, of 104.
OPTIONS: dict[str, Any] = {
    "lens": (20, 0, 9, 32),
    "heads": 2,
    "block_size": 16,
    "spare_pages": 100,
    "holes": 0.2,
    "sink": 0.0,
}


def drafted(**options: Any) -> RecordDraft:
    return draft("swa_decode", synthesise("swa_decode", **{**OPTIONS, **options}))


def run(store: Store, kernel: str, **options: Any) -> Any:
    return replay(store, kernel=kernel, isolate=False, **options)


def faulty(name: str) -> str:
    return f"{FAULTY}:{name}"


@pytest.fixture(scope="module")
def few_pages() -> dict[str, RecordDraft]:
    return {layout: drafted(cache_layout=layout) for layout in LAYOUTS}


@pytest.mark.every(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("against", ["reference", "recorded", "torch"])
def test_right_kernels_pass(
    store_of: StoreOf, few_pages: dict[str, RecordDraft], layout: str, against: str
) -> None:
    store = store_of([few_pages[layout]])
    for kernel in ("torch", "reference"):
        (record,) = run(store, kernel, against=against).records
        assert record.outcome is Outcome.PASS, record.reason
        assert {tensor.tensor for tensor in record.tensors} == {"o", "lse"}
        assert not record.notes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_call_that_a_kernel_gets_is_the_callers(store_of: StoreOf, layout: str) -> None:
    """All pages at their numbers with the caller's stride, stale entries and all; those not stored are NaN in
    every value, and what lies between pages is no number either."""
    call = synthesise("swa_decode", **OPTIONS, cache_layout=layout, poison=False)
    (record,) = store_of([draft("swa_decode", call)]).records
    touched = OP.touched(call)["cache"]
    assert record.info.pools["cache"] == Pool(len(call.tensors["cache"]), tuple(touched.tolist()))
    assert len(call.tensors["cache"]) == 104
    assert 0 < len(touched) <= 4
    bound = bind.exact(record, OP, CPU)
    assert bound.notes == ()
    cache = bound.call.tensors["cache"]
    assert (cache.shape, cache.stride()) == (call.tensors["cache"].shape, call.tensors["cache"].stride())
    if layout == "fp8_ds_mla":
        assert cache.stride(0) == 9792 > 16 * 584
    assert torch.equal(bound.call.tensors["swa_indices"], call.tensors["swa_indices"])
    rows = layouts.unpack(cache, bound.call.tensors.get("inv_scale"), layout, torch.float32)
    wanted = layouts.unpack(call.tensors["cache"], call.tensors.get("inv_scale"), layout, torch.float32)
    assert torch.equal(rows[touched], wanted[touched])
    blank = torch.ones(len(rows), dtype=torch.bool)
    blank[touched] = False
    assert bool(rows[blank].isnan().all())
    everything = torch.tensor([], dtype=torch.uint8).set_(cache.untyped_storage())
    if layout == "fp8_ds_mla":
        gaps = everything[: 9792 * (len(cache) - 1)].view(-1, 9792)[:, 16 * 584 :]
        assert bool((gaps == 0xFF).all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_compact_call_has_stored_pages_alone(
    store_of: StoreOf, few_pages: dict[str, RecordDraft], layout: str
) -> None:
    (record,) = store_of([few_pages[layout]]).records
    small = calls.compact_call(record, OP, CPU)
    pages = len(record.info.pools["cache"].rows)
    assert small.tensors["cache"].shape[0] == pages
    OP.validate(small)
    whole = run_kernel(OP, "reference", bind.exact(record, OP, CPU).call)
    found = run_kernel(OP, "reference", small)
    assert all(torch.equal(whole[name], found[name]) for name in ("o", "lse"))


def test_the_outline_reads_no_pool(store_of: StoreOf, few_pages: dict[str, RecordDraft]) -> None:
    for layout in LAYOUTS:
        (record,) = store_of([few_pages[layout]], f"{layout}.zarr").records
        outline = calls.outline_call(record, OP)
        assert outline.tensors["cache"].is_meta
        assert len(OP.partition(outline, "o").regions) == 4


@pytest.mark.every(2)
@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("reads_a_page_too_many", "o: "),
        ("follows_stale_entries", "o: "),
        ("writes_to_the_cache", "input cache was written to: 1 elements, first [0, 0, 0]"),
        ("ignores_the_sink", "o: "),
        ("counts_the_sink_in_lse", "lse: "),
    ],
)
def test_mistakes_are_found_where_pages_were_not_stored(
    store_of: StoreOf, few_pages: dict[str, RecordDraft], layout: str, kernel: str, reason: str
) -> None:
    store = store_of([few_pages[layout]])
    assert run(store, faulty("correct")).exit_code is Exit.PASS
    (record,) = run(store, faulty(kernel)).records
    assert record.outcome is Outcome.MISMATCH
    assert record.reason.startswith(reason)


def test_a_kernel_of_another_index_shape_is_converted_for(store_of: StoreOf) -> None:
    drafts = [drafted(index_shape=shape) for shape in ("TW", "1TW", "T1W")]
    report = run(store_of(drafts), faulty("shows_what_it_got"))
    assert report.exit_code is Exit.PASS, [record.reason for record in report.records]
    viewed = wording("kernels.indices-viewed", shape="T, 1, W")
    *converted, same = report.records
    for record, shape in zip(converted, ("TW", "1TW"), strict=True):
        (note,) = record.notes
        assert re.fullmatch(f"index_shape {shape} -> T1W: {viewed}", note)
    assert same.notes == ()


def test_a_layout_that_a_kernel_does_not_take_is_not_converted(store_of: StoreOf) -> None:
    (record,) = run(store_of([drafted(cache_layout="bfloat16")]), faulty("correct")).records
    assert record.outcome is Outcome.UNSUPPORTED
    assert re.search(wording("kernels.layout-rounds", wanted="per_token_scale"), record.reason)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_records_in_which_nothing_is_attended_to(store_of: StoreOf, layout: str) -> None:
    """No page is stored at all."""
    store = store_of([drafted(cache_layout=layout, lens=(0, 0)), drafted(cache_layout=layout, lens=())])
    assert store.records[0].info.pools["cache"].rows == ()
    for kernel in ("torch", "reference"):
        report = run(store, kernel)
        assert report.exit_code is Exit.PASS, [record.reason for record in report.records]


# lse: the oracle's plus this much, and whether that passes at an lse of about 6: 1e-3 + 6 * 2^-16 = 1.09e-3.
SHIFTS = [(9e-4, True), (1.3e-3, False), (-9e-4, True), (-1.3e-3, False)]


def shifted(record: RecordDraft, by: float) -> RecordDraft:
    after = record.after["lse"]
    return replace(record, after={**record.after, "lse": TensorDraft(after.data + by, after.meta)})


@pytest.mark.parametrize(("by", "passes"), SHIFTS)
def test_lse_has_a_tolerance_of_its_own(store_of: StoreOf, by: float, passes: bool) -> None:
    """On the side compared with, by the one that is replayed, and in diff by the oracle."""
    record = drafted(cache_layout="fp8_ds_mla")
    store = store_of([shifted(record, by)])
    (found,) = run(store, "torch", against="recorded").records
    assert (found.outcome is Outcome.PASS) == passes
    results = {tensor.side: tensor for tensor in found.tensors if tensor.tensor == "lse"}
    assert set(results) == {Side.KERNEL, Side.AGAINST, Side.DIFFERENCE}
    assert results[Side.KERNEL].passed
    assert results[Side.AGAINST].passed == passes
    if not passes:
        assert found.reason.startswith("against lse: ")
    right = store_of([record], "right.zarr")
    assert (diff(right, store, oracle=True).exit_code is Exit.PASS) == passes
    assert diff(right, store).exit_code is Exit.MISMATCH


def test_lse_that_overflows_is_infinite(store_of: StoreOf) -> None:
    """Scores of 1e38 times 20 or so are past float32: what is right there is the infinity of their sign."""
    store = store_of([drafted(cache_layout="fp8_ds_mla", scale=1e38)])
    lse = store.records[0].after["lse"].read()
    assert bool((lse == torch.inf).any())
    for against in ("reference", "recorded"):
        (found,) = run(store, "torch", against=against).records
        assert next(tensor.reasons for tensor in found.tensors if tensor.tensor == "lse") == ()
    negated = drafted(cache_layout="fp8_ds_mla", scale=1e38)
    other = replace(negated.after["lse"], data=-lse)
    wrong = store_of([replace(negated, after={**negated.after, "lse": other})], "wrong.zarr")
    (found,) = run(wrong, "torch", against="recorded").records
    assert found.reason.startswith("against lse: ")


def test_lse_against_another_kernel(store_of: StoreOf) -> None:
    store = store_of([drafted(cache_layout="fp8_ds_mla")])
    (record,) = run(store, "torch", against=faulty("rounds_lse")).records
    assert record.outcome is Outcome.MISMATCH
    assert record.reason.startswith("against lse: ")
    assert run(store, "torch", against=faulty("correct")).exit_code is Exit.PASS
    assert run(store, faulty("correct"), against="torch", bitwise=True).exit_code is Exit.PASS
    assert run(store, faulty("rounds_lse"), against="torch", bitwise=True).exit_code is Exit.MISMATCH
    # By hand a tolerance holds for every output.
    assert run(store, faulty("rounds_lse"), tol=(0.1, 0.1)).exit_code is Exit.PASS


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_runs_keep_no_pools_and_are_compared(
    store_of: StoreOf, few_pages: dict[str, RecordDraft], layout: str, tmp_path: Path
) -> None:
    store = store_of([few_pages[layout]])
    for name in ("correct", "rounds_lse"):
        run(store, faulty(name), save=tmp_path / name)
    with open_store(tmp_path / "correct") as one, open_store(tmp_path / "rounds_lse") as other:
        assert set(one.records[0].before) == {"swa_indices", "swa_lens"}
        assert diff(one, one).exit_code is Exit.PASS
        (record,) = diff(one, other).records
        assert record.outcome is Outcome.MISMATCH
        assert [tensor.tensor for tensor in record.tensors if not tensor.passed] == ["lse"]
        assert diff(store, one, oracle=True).exit_code is Exit.PASS
        assert diff(store, other, oracle=True).exit_code is Exit.MISMATCH


def without_page(record: RecordDraft, names: tuple[str, ...]) -> RecordDraft:
    """The record as if its last page had not been stored, in the pools of those names."""
    pools, before = dict(record.info.pools), dict(record.before)
    for name in names:
        lost = 1 if name == "cache" else 16
        pools[name] = replace(pools[name], rows=pools[name].rows[:-lost])
        held = before[name]
        data = held.data[:-lost].clone()
        before[name] = TensorDraft(data, replace(held.meta, shape=tuple(data.shape)))
    return replace(record, info=replace(record.info, pools=pools), before=before)


@pytest.mark.parametrize(
    ("layout", "names", "reason"),
    [
        ("fp8_ds_mla", ("cache",), wording("kernels.page-not-captured")),
        ("per_token_scale", ("cache", "inv_scale"), wording("kernels.page-not-captured")),
        ("per_token_scale", ("inv_scale",), wording("kernels.scales-captured", slots=48)),
    ],
)
def test_a_record_that_lacks_a_page_is_refused(
    store_of: StoreOf,
    few_pages: dict[str, RecordDraft],
    layout: str,
    names: tuple[str, ...],
    reason: str,
) -> None:
    store = store_of([without_page(few_pages[layout], names)])
    with pytest.raises(BadInputError, match=reason):
        calls.compact_call(store.records[0], OP, CPU)
    (record,) = run(store, "torch").records
    assert record.outcome is Outcome.REFUSED
    assert re.search(reason, record.reason)
    assert "\n" not in record.reason


def changed(record: RecordDraft, name: str, edit: Callable[[Tensor], object]) -> RecordDraft:
    data = record.before[name].data.clone()
    edit(data)
    return replace(record, before={**record.before, name: TensorDraft(data, record.before[name].meta)})


@pytest.mark.parametrize(
    ("name", "edit", "reason"),
    [
        (
            "swa_lens",
            lambda t: t[0].fill_(129),
            wording("kernels.range", place="swa_lens[0]", value=129, high=128),
        ),
        ("swa_indices", lambda t: t[3, 5].fill_(-2), r"swa_indices\[3, 5\] is -2"),
        ("swa_indices", lambda t: t[0, 0].fill_(1_000_000), r"swa_indices\[0, 0\] is 1000000"),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_record_outside_the_contract_is_refused(
    store_of: StoreOf, few_pages: dict[str, RecordDraft], layout: str, name: str, edit: Any, reason: str
) -> None:
    store = store_of([changed(few_pages[layout], name, edit)])
    (record,) = run(store, "torch").records
    assert record.outcome is Outcome.REFUSED
    assert re.match(f"swa_decode: {reason}", record.reason)


def test_a_store_of_all_layouts_is_whole(store_of: StoreOf, few_pages: dict[str, RecordDraft]) -> None:
    store = store_of(list(few_pages.values()))
    report = verify(store.path)
    assert (report.damages, report.problems, report.records) == ((), (), 3)


ROWS = """
import torch
from gdnbench_kernels.swa_decode.layouts import read_rows
from gdnbench_kernels.swa_decode.window import attended

def kernel(q, cache, inv_scale, swa_indices, swa_lens, attn_sink, scale, o, lse):
    counts = attended(swa_indices, swa_lens)
    for token in torch.nonzero(counts.any(1)).flatten().tolist():
        slots = swa_indices[token][counts[token]]
        rows = read_rows(cache, inv_scale, slots, "per_token_scale", torch.float32).to(ROWS_DTYPE).float()
        scores = (512**-0.5 if scale is None else scale) * q[token].float() @ rows.T
        lse[token] = torch.logsumexp(scores, 1) + OFF
        o[token] = (torch.exp(scores - torch.logaddexp(lse[token], attn_sink)[:, None]) @ rows).to(o.dtype)
"""


@pytest.mark.parametrize(
    ("dtype", "off", "outcome"),
    [
        ("float32", 0.0, Outcome.PASS),
        ("bfloat16", 0.0, Outcome.PASS),  # which the contract allows: lse moves by up to 0.1 here
        ("float16", 0.5, Outcome.MISMATCH),
        ("bfloat16", 0.5, Outcome.MISMATCH),
    ],
)
def test_lse_of_rows_rounded_to_bf16(
    store_of: StoreOf, tmp_path: Path, dtype: str, off: float, outcome: Outcome
) -> None:
    call = synthesise("swa_decode", lens=(128, 17, 90), heads=8, spread=100.0, sink=0.0)
    file = tmp_path / "rows.py"
    file.write_text(ROWS.replace("ROWS_DTYPE", f"torch.{dtype}").replace("OFF", str(off)))
    (found,) = replay(store_of([draft("swa_decode", call)]), kernel=f"{file}:kernel", isolate=False).records
    assert found.outcome is outcome, found.reason
