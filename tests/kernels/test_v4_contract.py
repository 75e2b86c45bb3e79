# SPDX-License-Identifier: Apache-2.0
"""What v4_decode promises and refuses: validation, pages touched, renumbering, conversions, costs, reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, ContractError, Region
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.v4_decode.contract import OPERATION, SERVED
from tests.messages import wording

Edit = Callable[[dict[str, Tensor]], object]
PAGED = {"extra_index_form": "block_table", "extra_block_size": 2}


def made(**options: Any) -> Call:
    """Three requests on window pages of 16 and compressed pages of 4."""
    given = {"lens": (20, 0, 7), "extra_lens": (10, 3, 0), "topk": 12, "window": 32, "heads": 2}
    return OPERATION.synth(**{**given, "block_size": 16, "extra_block_size": 4, "spare_pages": 1, **options})


def edited(call: Call, edit: Edit) -> Call:
    tensors = dict(call.tensors)
    edit(tensors)
    return Call(tensors, call.scalars, call.conventions)


def put(name: str, position: tuple[int, ...], value: int) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors[name].clone()
        tensors[name][position] = value

    return edit


def drop(name: str) -> Edit:
    return lambda tensors: tensors.pop(name)


def swap(name: str, change: Callable[[Tensor], Tensor]) -> Edit:
    return lambda tensors: tensors.update({name: change(tensors[name])})


def refusal(call: Call) -> str:
    with pytest.raises(ContractError) as refused:
        OPERATION.validate(call)
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix("v4_decode: ")


def slot_range(place: str, value: int, last: int) -> str:
    return wording("kernels.slot-range", place=place, value=value, last=last)


# By hand: the window has 2 pages of 16 and a spare one, 48 slots; the extra cache 4 of 4 and one, 20; a table
# of pages of 2 has 5 + 2 and one.
REFUSALS: list[tuple[dict[str, Any], Edit, str]] = [
    ({}, put("swa_indices", (0, 0, 19), 48), slot_range("swa_indices[0, 0, 19]", 48, 47)),
    ({}, put("swa_indices", (2, 0, 6), -2), slot_range("swa_indices[2, 0, 6]", -2, 47)),
    ({}, put("extra_indices", (1, 0, 2), 20), slot_range("extra_indices[1, 0, 2]", 20, 19)),
    (
        {"index_shape": "T1W"},
        put("extra_indices", (1, 0, 2), 20),
        slot_range("extra_indices[1, 0, 2]", 20, 19),
    ),
    ({"index_shape": "TW"}, put("extra_indices", (1, 2), 20), slot_range("extra_indices[1, 2]", 20, 19)),
    (
        PAGED,
        put("extra_indices", (0, 0, 4), -1),
        wording("kernels.page-range", place="extra_indices[0, 0, 4]", value=-1, last=7),
    ),
    (
        {},
        put("swa_lens", (0, 0), 33),
        wording(
            "kernels.segment-length",
            place="swa_lens[0, 0]",
            value=33,
            most=32,
            what="the entries of its table",
        ),
    ),
    (
        PAGED,
        put("extra_lens", (2, 0), 13),
        wording(
            "kernels.segment-length",
            place="extra_lens[2, 0]",
            value=13,
            most=12,
            what="the positions of its pages",
        ),
    ),
    (
        {},
        put("extra_lens", (1, 0), -1),
        wording("kernels.segment-length", place="extra_lens[1, 0]", value=-1),
    ),
    (
        {"masked_indices": "legal"},
        put("swa_indices", (1, 0, 31), -1),
        wording("kernels.masked-illegal", place="swa_indices[1, 0, 31]", value=-1, what="slot", last=47),
    ),
    (
        {"masked_indices": "legal", **PAGED},
        put("extra_indices", (2, 0, 0), 8),
        # The row attends to nothing; its request's table is read up to nothing as well.
        "",
    ),
    (
        {"masked_indices": "legal", **PAGED},
        put("extra_indices", (1, 0, 5), 8),
        wording("kernels.masked-illegal", place="extra_indices[1, 0, 5]", value=8, what="page", last=7),
    ),
    ({}, drop("extra_lens"), wording("kernels.segment-part", given="extra_cache", missing="extra_lens")),
    ({}, drop("extra_cache"), wording("kernels.segment-part", given="extra_indices", missing="extra_cache")),
    (
        {"extra_lens": ()},
        lambda t: t.update(extra_inv_scale=torch.ones(4)),
        wording("kernels.segment-scales", scales="extra_inv_scale", cache="extra_cache"),
    ),
    (
        {},
        drop("extra_inv_scale"),
        wording(
            "kernels.inv-scale-layout", tensor="extra_inv_scale", state="missing", convention="extra_layout"
        ),
    ),
    (
        {},
        swap("q", lambda q: q.expand(3, 9, 2, 512)),
        wording("kernels.axis-differs", tensor="swa_indices", symbol="S", size=1, source_size=9),
    ),
    (
        {"extra_lens": (), "index_shape": "TW", "lens_shape": "T"},
        swap("q", lambda q: q.expand(3, 9, 2, 512)),
        wording("kernels.queries-range", queries=9, most=8),
    ),
    (
        {"extra_lens": (), "index_shape": "TW", "lens_shape": "T"},
        swap("q", lambda q: q.expand(3, 2, 2, 512)),
        wording("kernels.query-rows", rows=3, wanted=6),
    ),
    (
        {},
        swap("extra_cache", lambda c: torch.zeros(1, 3, 512, dtype=torch.uint8)),
        wording("kernels.cache-block-size", tensor="extra_cache", block_size=3),
    ),
    (
        {"extra_layout": "fp8_ds_mla"},
        swap("extra_cache", lambda c: c.reshape(1, -1, 584)[:, :4].repeat(1, 128, 1)[:, ::2]),
        wording("kernels.cache-strides-contract", tensor="extra_cache"),
    ),
    (
        {},
        lambda t: t.update(extra_indices=torch.zeros(3, 1, 2049, dtype=torch.int32)),
        wording("kernels.topk-range", entries=2049, most=2048),
    ),
    (
        {},
        lambda t: t.update(extra_indices=torch.zeros(3, 1, 0, dtype=torch.int32)),
        wording("kernels.segment-empty"),
    ),
    *(
        (
            {"cache_layout": "fp8_ds_mla", "extra_layout": "fp8_ds_mla"},
            swap(name, lambda c: torch.zeros(5, 16, 384, dtype=torch.uint8)),
            wording("kernels.layout-unsettled", where=name, layout="nvfp4"),
        )
        for name in ("cache", "extra_cache")
    ),
    (
        {},
        lambda t: t.update(swa_indices=torch.zeros(3, 1, 133, dtype=torch.int32)),
        wording("kernels.window-wide", window=133, most=128),
    ),
    (
        {},
        lambda t: t.update(swa_indices=torch.zeros(3, 1, 0, dtype=torch.int32)),
        wording("kernels.window-range", window=0, most=128),
    ),
]


@pytest.mark.parametrize(("options", "edit", "message"), REFUSALS)
def test_refuses(options: dict[str, Any], edit: Edit, message: str) -> None:
    call = edited(made(**options), edit)
    if message:
        assert re.fullmatch(message, refusal(call))
    else:
        OPERATION.validate(call)


@pytest.mark.parametrize("name", ["cache_layout", "extra_layout"])
@pytest.mark.parametrize("layout", ["nvfp4", "NVFP4", "fp4_mxfp8"])
def test_refuses_layouts_that_are_not_settled_by_name(name: str, layout: str) -> None:
    message = wording("kernels.layout-unsettled", where=name, layout=layout.lower())
    call = made()
    assert re.fullmatch(message, refusal(Call(call.tensors, {}, {**call.conventions, name: layout})))
    with pytest.raises(ContractError, match=message):
        made(**{name: layout})


def test_a_wider_window_is_a_window_and_an_extra_segment() -> None:
    """As the message about 133 entries says: 128 of them, and 5 in the same cache."""
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(9, 16, 512, generator=generator).bfloat16()
    q = torch.randn(1, 1, 2, 512, generator=generator).bfloat16()
    slots = torch.randperm(144, generator=generator)[:133].to(torch.int32).view(1, 1, 133)
    count = torch.tensor([[128]], dtype=torch.int32)
    call = Call(
        {
            "q": q,
            "cache": cache,
            "swa_indices": slots[..., :128].contiguous(),
            "swa_lens": count,
            "extra_cache": cache,
            "extra_indices": slots[..., 128:].contiguous(),
            "extra_lens": count - 123,
        },
        {},
        {"cache_layout": "bfloat16", "extra_layout": "bfloat16"},
    )
    OPERATION.validate(call)
    rows = cache.flatten(0, 1)[slots.flatten().long()].double()
    dense = torch.softmax(q[0, 0].double() @ rows.T * 512**-0.5, 1) @ rows
    found = run_kernel(OPERATION, "reference", call)["o"]
    assert torch.allclose(found[0, 0], dense, rtol=0, atol=1e-13)  # sums of 133 terms below 5 in fp64


def test_accepts_what_no_kernel_may_follow() -> None:
    call = made(queries=2)
    table, extra = call.tensors["swa_indices"].clone(), call.tensors["extra_indices"].clone()
    table[1], table[0, :, 22:], extra[2] = 2**31 - 1, -(2**31), -5
    OPERATION.validate(edited(call, lambda t: t.update(swa_indices=table, extra_indices=extra)))
    pages = made(**PAGED)
    OPERATION.validate(edited(pages, put("extra_indices", (1, 0, 2), -1)))
    OPERATION.validate(made(lens=(0, 0), extra_lens=(0, 0)))


def hand(**options: Any) -> Call:
    """Two requests: slots 17, -1, 31 and 2 of a window; compressed slots 9 and 9, and none."""
    call = made(lens=(3, 1), extra_lens=(2, 0), **options)
    table = torch.full((2, 1, 32), 40, dtype=torch.int32)
    table[0, 0, :3], table[1, 0, 0] = torch.tensor([17, -1, 31]), 2
    extra = torch.full((2, 1, 12), 1, dtype=torch.int32)
    extra[0, 0, :2] = 9
    pools = {
        "cache": torch.zeros(3, 16, 512, dtype=torch.uint8),
        "inv_scale": torch.ones(48),
        "extra_cache": torch.zeros(5, 4, 512, dtype=torch.uint8),
        "extra_inv_scale": torch.ones(20),
    }
    return edited(call, lambda t: t.update(swa_indices=table, extra_indices=extra, **pools))


def listed(found: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: rows.tolist() for name, rows in found.items()}


def test_touched_by_hand() -> None:
    assert listed(OPERATION.touched(hand())) == {
        "cache": [0, 1],
        "inv_scale": list(range(32)),
        "extra_cache": [2],
        "extra_inv_scale": [8, 9, 10, 11],
    }
    call = hand(masked_indices="legal")
    call = edited(call, put("swa_indices", (0, 0, 1), 16))
    assert listed(OPERATION.touched(call)) == {  # the masked entries too: slot 40, compressed slot 1
        "cache": [0, 1, 2],
        "inv_scale": list(range(48)),
        "extra_cache": [0, 2],
        "extra_inv_scale": [0, 1, 2, 3, 8, 9, 10, 11],
    }


def test_touched_pages_of_a_table_by_hand() -> None:
    """5 positions on pages of 2 are 3 pages; legal entries are read to a multiple of 128 positions."""
    for masked, pages in (("any", [0, 4, 6]), ("legal", [0, 1, 4, 6])):
        call = made(lens=(1, 0), extra_lens=(5, 0), masked_indices=masked, **PAGED, spare_pages=4)
        call = edited(
            call,
            lambda t: t.update(
                extra_indices=torch.tensor([[[6, 0, 4, 1]], [[3, 3, 3, 3]]], dtype=torch.int32)
            ),
        )
        OPERATION.validate(call)
        assert OPERATION.touched(call)["extra_cache"].tolist() == pages


def test_renumber_by_hand() -> None:
    call = hand()
    stored = {"cache": [0, 1], "inv_scale": range(32), "extra_cache": [2], "extra_inv_scale": range(8, 12)}
    found = OPERATION.renumber(call, stored)
    assert found["swa_indices"][:, 0, :3].tolist() == [[17, -1, 31], [2, 0, 0]]
    assert found["extra_indices"][:, 0, :3].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert (found["swa_indices"][..., 3:] == 0).all()
    one = OPERATION.renumber(call, {"extra_cache": [1, 2], "extra_inv_scale": range(4, 12)})
    assert one.keys() == {"extra_indices"}  # the window's pool is whole
    assert one["extra_indices"][0, 0, :2].tolist() == [5, 5]
    assert OPERATION.renumber(call, {}) == {}
    with pytest.raises(
        ContractError, match=wording("kernels.page-not-captured", place="swa_indices[0, 0, 0]")
    ):
        OPERATION.renumber(call, {"cache": [0], "inv_scale": range(16)})
    with pytest.raises(
        ContractError, match=wording("kernels.scales-captured", tensor="extra_inv_scale", slots=3)
    ):
        OPERATION.renumber(call, {"extra_cache": [2], "extra_inv_scale": range(8, 11)})


RENUMBERED = [
    {},
    {"cache_layout": "fp8_ds_mla", "index_shape": "TW", "lens_shape": "T", "queries": 2},
    {"extra_layout": "bfloat16", "index_shape": "T1W", "lens_shape": "B", "packed": True},
    {**PAGED, "queries": 2, "extra_layout": "fp8_ds_mla"},
    {**PAGED, "masked_indices": "legal", "spare_pages": 9},
    {"masked_indices": "legal", "spare_pages": 9},
    {"extra_lens": ()},
]


@pytest.mark.parametrize("options", RENUMBERED)
def test_renumbered_calls_compute_the_same(options: dict[str, Any]) -> None:
    """With the pages that are not stored taken away; and `placed` puts them back."""
    call = made(**{"spare_pages": 5, **options})
    rows = OPERATION.touched(call)
    kept = {name: call.tensors[name][index] for name, index in rows.items()}
    small = Call({**call.tensors, **kept}, call.scalars, call.conventions)
    stored = {name: index.tolist() for name, index in rows.items()}
    found = OPERATION.renumber(small, stored)
    again = Call({**small.tensors, **found}, call.scalars, call.conventions)
    OPERATION.validate(again)
    assert {name: one.shape for name, one in found.items()} == {
        name: call.tensors[name].shape for name in found
    }
    shrinking = OPERATION.shrinking
    assert shrinking is not None
    assert shrinking.placed is not None
    back = Call({**call.tensors, **shrinking.placed(again, stored)}, call.scalars, call.conventions)
    OPERATION.validate(back)
    one, *others = (run_kernel(OPERATION, "reference", c) for c in (call, again, back))
    assert all(torch.equal(one[name], other[name]) for other in others for name in one)


def test_every_request_owns_the_rows_of_its_queries() -> None:
    call = made(queries=2)
    for name in ("o", "lse"):
        partition = OPERATION.partition(call, name)
        assert partition.regions == tuple(Region(i, i + 1, i) for i in range(3))
        assert (partition.head_axis, partition.token_axis) == (2, 1)
    with pytest.raises(KeyError):
        OPERATION.partition(call, "q")
    assert OPERATION.outputs(call) == {
        "o": ((3, 2, 2, 512), torch.bfloat16),
        "lse": ((3, 2, 2), torch.float32),
    }
    assert OPERATION.outputs(made(output_lse=False)).keys() == {"o"}


CONVERTED: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"index_shape": one, "lens_shape": lens}, {"index_shape": other, "lens_shape": to})
    for one, lens, other, to in (
        ("BSW", "B", "TW", "T"),
        ("TW", "T", "T1W", "BS"),
        ("T1W", "BS", "BSW", "T"),
        ("BSW", "B", "T1W", "BS"),
    )
] + [
    (PAGED, {"extra_index_form": "indices", "index_shape": "TW"}),
    ({"masked_indices": "legal"}, {"masked_indices": "any"}),
    ({"stale": "live"}, {"masked_indices": "legal"}),
    ({}, {"lse_base": "2", "lse_empty": "plus_inf"}),
    ({"lse_base": "2", "lse_empty": "plus_inf"}, {"lse_base": "e", "lse_empty": "minus_inf"}),
    ({"sink": 0.0, "output_lse": False}, {"lse_sink": "with"}),
]


@pytest.mark.parametrize(("options", "target"), CONVERTED)
def test_conversions_compute_the_same(options: dict[str, Any], target: dict[str, str]) -> None:
    call = made(queries=2, **options)
    found = OPERATION.convert(call, target)
    OPERATION.validate(found)
    assert found.conventions == {**call.conventions, **target}
    one = run_kernel(OPERATION, "reference", call)
    other = run_kernel(OPERATION, "reference", found)
    other = OPERATION.convert_outputs(other, found.conventions, call.conventions)
    # A rounding or two of lse where its base changes.
    for name in one:
        torch.testing.assert_close(other[name], one[name], rtol=2**-51, atol=0)


def test_lengths_become_those_of_requests_where_they_are_equal() -> None:
    call = made(queries=2, lens=(32, 0, 32), extra_lens=())
    found = OPERATION.convert(call, {"lens_shape": "B"})
    assert found.tensors["swa_lens"].tolist() == [32, 0, 32]


@pytest.mark.parametrize(
    ("options", "target", "message"),
    [
        ({"queries": 2}, {"lens_shape": "B"}, wording("kernels.lengths-differ", request=0, lengths="20, 21")),
        ({}, {"extra_layout": "fp8_ds_mla"}, wording("kernels.layout-rounds", layout="per_token_scale")),
        ({}, {"extra_index_form": "block_table"}, wording("kernels.slots-to-pages")),
        (
            {"extra_index_form": "block_table", "extra_block_size": 64, "extra_lens": (2000, 0, 0)},
            {"extra_index_form": "indices"},
            wording("kernels.pages-to-slots", positions=2112, most=2048),
        ),
        ({"sink": 0.0}, {"lse_sink": "with"}, wording("kernels.lse-sink", current="without", wanted="with")),
        (
            {},
            {"masked_indices": "legal"},
            wording("kernels.masked-illegal", place="swa_indices[0, 0, 20]", value=2130706452),
        ),
        (
            {"stale": "live", "holes": 0.3},
            {"masked_indices": "legal"},
            wording("kernels.masked-illegal", value=-1),
        ),
    ],
)
def test_conversions_that_are_none(options: dict[str, Any], target: dict[str, str], message: str) -> None:
    with pytest.raises(ContractError) as refused:
        OPERATION.convert(made(**options), target)
    assert re.fullmatch(f"v4_decode: {message}", str(refused.value))


def test_an_lse_of_plus_infinity_with_an_o_that_is_no_number_is_kept() -> None:
    lse, o = torch.tensor([[[torch.inf, torch.inf]]]), torch.zeros(1, 1, 2, 512)
    o[..., 1, 3] = torch.nan
    found = OPERATION.convert_outputs({"o": o, "lse": lse}, {"lse_empty": "plus_inf"}, {})
    assert found["lse"].tolist() == [[[-torch.inf, torch.inf]]]


def test_work_by_hand() -> None:
    """Two slots of 3 entries of one request, one of another; compressed slot 9 twice."""
    work = OPERATION.work
    assert work is not None
    found = work(hand(output_lse=True))
    rows = (3 + 1) * (512 + 4)
    queries, tables, lens = 2 * 2 * 1024, (3 + 1 + 2) * 4, 4 * 4
    assert found.read == rows + queries + tables + lens
    assert found.written == 2 * 2 * 1024 + 2 * 2 * 4
    assert found.flop == 2 * 2 * 2 * 512 * (2 + 1 + 2)


def test_reads_of_the_window_by_hand() -> None:
    """Queries 0 and 1 of a request read tokens -1 and 0, and 0 and 1; -1 is no read, and a padded request
    reads nothing."""
    call = made(queries=2, lens=(2, 0), extra_lens=(2, 0))
    table = torch.full((2, 2, 32), 7, dtype=torch.int32)
    table[0, 0, :2], table[0, 1, :3] = torch.tensor([30, 31]), torch.tensor([-1, 31, 5])
    call = edited(call, lambda t: t.update(swa_indices=table))
    accesses = OPERATION.accesses
    assert accesses is not None
    window = accesses(call)[0]
    assert sorted(map(tuple, window.reads.tolist())) == [(0, 5, 1), (0, 30, -1), (0, 31, 0)]
    assert (window.chain, window.before, window.after, window.split) == ("window", "cache", None, 16)
    assert window.tokens.tolist() == [2, 2]


def test_what_compiled_kernels_serve_is_in_the_contract() -> None:
    known = {convention.name: convention.values for convention in OPERATION.conventions}
    assert SERVED.keys() == known.keys()
    assert all(set(values) <= set(known[name]) for name, values in SERVED.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queries": 9}, wording("kernels.synth-queries", queries=9, most=8)),
        ({"lens": (33, 0, 0)}, wording("kernels.lens-range", window=32, given="33, 0, 0")),
        ({"extra_lens": (13, 0, 0)}, wording("kernels.extra-lens-range", topk=12, given="13, 0, 0")),
        ({"extra_lens": (1,)}, wording("kernels.extra-lens-count", extra=1, lens=3)),
        ({"topk": 0}, wording("kernels.topk-least", topk=0)),
        ({"extra_block_size": 3}, wording("kernels.extra-block-size", block_size=3)),
        ({"stale": "dead"}, wording("kernels.stale-entries", stale="dead")),
        ({"masked_indices": "legal", "holes": 0.2}, wording("kernels.legal-holes")),
        ({"masked_indices": "legal", "stale": "outside"}, wording("kernels.legal-holes")),
        ({"duplicates": 1.5}, wording("kernels.duplicates-range", duplicates=1.5)),
        ({"packed": True, "extra_lens": ()}, wording("kernels.packed-alone")),
        ({"nan_extra_at": (0,), "extra_lens": ()}, wording("kernels.nan-no-segment", option="nan_extra_at")),
        ({"lens_shape": "S"}, wording("kernels.convention-of-synth", name="lens_shape", value="S")),
    ],
)
def test_synth_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as refused:
        made(**options)
    assert re.fullmatch(message, str(refused.value))
