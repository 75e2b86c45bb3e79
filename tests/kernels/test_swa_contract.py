# SPDX-License-Identifier: Apache-2.0
"""What swa_decode promises and refuses: validation, pages touched, renumbering, conversions, outputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, ContractError, Region
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.swa_decode.contract import OPERATION, SERVED
from gdnbench_kernels.swa_decode.layouts import empty_ds_mla
from tests.messages import wording

NAN, INF = float("nan"), float("inf")
Edit = Callable[[dict[str, Tensor]], object]


def made(**options: Any) -> Call:
    """Four requests on 5 pages of 16: 80 slots."""
    return OPERATION.synth(
        **{"lens": (20, 0, 7, 32), "heads": 2, "window": 32, "block_size": 16, "spare_pages": 1} | options
    )


def ds_mla(**options: Any) -> Call:
    return made(cache_layout="fp8_ds_mla", **options)


def edited(call: Call, edit: Edit) -> Call:
    tensors = {
        name: tensor.clone(memory_format=torch.preserve_format) for name, tensor in call.tensors.items()
    }
    tensors["cache"] = call.tensors["cache"]
    edit(tensors)
    return Call(tensors, call.scalars, call.conventions)


def put(name: str, position: tuple[int, ...], value: float) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name][position] = value

    return edit


def swap(name: str, change: Callable[[Tensor], Tensor]) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name] = change(tensors[name])

    return edit


def drop(name: str) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    return edit


def add(name: str, tensor: Tensor) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensor

    return edit


def heads(count: int) -> Edit:
    return swap("q", lambda q: torch.zeros(len(q), count, 512, dtype=q.dtype))


def window(width: int) -> Edit:
    return swap("swa_indices", lambda i: torch.zeros(len(i), width, dtype=i.dtype))


def pages(blocks: int, block_size: int) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors["cache"] = torch.zeros(blocks, block_size, 512, dtype=torch.uint8)
        tensors["inv_scale"] = torch.ones(blocks * block_size)

    return edit


def strided(*strides: int) -> Callable[[Tensor], Tensor]:
    def change(cache: Tensor) -> Tensor:
        extent = 1 + sum((n - 1) * s for n, s in zip(cache.shape, strides, strict=True))
        memory = torch.zeros(extent, dtype=torch.uint8).view(cache.dtype)
        return memory.as_strided(cache.shape, strides)

    return change


REFUSALS: list[tuple[Edit, str]] = [
    (put("swa_lens", (2,), 33), wording("kernels.range", place="swa_lens[2]", value=33, high=32)),
    (put("swa_lens", (1,), -1), wording("kernels.range", place="swa_lens[1]", value=-1, high=32)),
    (
        put("swa_indices", (0, 19), 80),
        wording("kernels.slot-range", place="swa_indices[0, 19]", value=80, last=79),
    ),
    (
        put("swa_indices", (3, 31), 2**31 - 1),
        wording("kernels.slot-range", place="swa_indices[3, 31]", value=2147483647, last=79),
    ),
    (
        put("swa_indices", (2, 0), -2),
        wording("kernels.slot-range", place="swa_indices[2, 0]", value=-2, last=79),
    ),
    (
        swap("q", Tensor.float),
        wording("kernels.dtype-refused", tensor="q", dtype="float32", wanted="bfloat16"),
    ),
    (
        swap("q", lambda q: q[..., :448]),
        wording("kernels.axis-size", tensor="q", size=448, axis=2, wanted=512),
    ),
    (
        swap("q", lambda q: q[:, 0]),
        wording("kernels.tensor-rank", tensor="q", shape="[4, 512]", rank=2, axes="T, H, 512"),
    ),
    (heads(0), wording("kernels.heads-range", heads=0, most=128)),
    (heads(129), wording("kernels.heads-range", heads=129, most=128)),
    (window(0), wording("kernels.window-range", window=0, most=128)),
    (window(129), wording("kernels.window-range", window=129, most=128)),
    (
        swap("swa_indices", lambda i: i[:3]),
        wording(
            "kernels.axis-differs",
            tensor="swa_indices",
            symbol="T",
            size=3,
            axis=0,
            source="q",
            source_symbol="T",
            source_size=4,
        ),
    ),
    (
        swap("swa_indices", Tensor.long),
        wording("kernels.dtype-refused", tensor="swa_indices", dtype="int64", wanted="int32"),
    ),
    (
        swap("swa_indices", lambda i: i.unsqueeze(1)),
        wording("kernels.tensor-rank", tensor="swa_indices", shape="[4, 1, 32]", rank=3, axes="T, W"),
    ),
    (
        swap("swa_lens", Tensor.long),
        wording("kernels.dtype-refused", tensor="swa_lens", dtype="int64", wanted="int32"),
    ),
    (
        swap("swa_lens", lambda n: n[:2]),
        wording(
            "kernels.axis-differs",
            tensor="swa_lens",
            symbol="T",
            size=2,
            axis=0,
            source="q",
            source_symbol="T",
            source_size=4,
        ),
    ),
    (drop("swa_lens"), wording("kernels.tensor-missing", tensor="swa_lens", axes="T")),
    (
        drop("inv_scale"),
        wording("kernels.inv-scale-layout", state="missing", cache_layout="per_token_scale"),
    ),
    (swap("inv_scale", lambda s: s[:-1]), wording("kernels.inv-scale-count", elements=79, slots=80)),
    (
        swap("inv_scale", Tensor.half),
        wording("kernels.dtype-refused", tensor="inv_scale", dtype="float16", wanted="float32 or bfloat16"),
    ),
    (
        swap("inv_scale", lambda s: s.view(5, 16)),
        wording("kernels.tensor-rank", tensor="inv_scale", shape="[5, 16]", rank=2, axes="slots"),
    ),
    (
        add("attn_sink", torch.zeros(3)),
        wording(
            "kernels.axis-differs",
            tensor="attn_sink",
            symbol="H",
            size=3,
            axis=0,
            source="q",
            source_symbol="H",
            source_size=2,
        ),
    ),
    (
        add("attn_sink", torch.zeros(2).double()),
        wording("kernels.dtype-refused", tensor="attn_sink", dtype="float64", wanted="float32"),
    ),
    (
        add("lse", torch.zeros(4, 2)),
        wording("kernels.tensor-unknown", tensor="lse", known="q, cache, inv_scale,"),
    ),
    (pages(5, 48), wording("kernels.cache-block-size", block_size=48, known="16, 32, 64, 128, 256")),
    (pages(5, 8), wording("kernels.cache-block-size", block_size=8, known="16, 32, 64, 128, 256")),
    (pages(1, 512), wording("kernels.cache-block-size", block_size=512, known="16, 32, 64, 128, 256")),
    (pages(0, 16), wording("kernels.cache-empty")),
    (
        swap("cache", lambda c: c.view(torch.uint8).bfloat16()),
        wording(
            "kernels.cache-dtype",
            dtype="bfloat16",
            cache_layout="per_token_scale",
            wanted="float8_e4m3fn or uint8",
        ),
    ),
    (
        swap("cache", lambda c: c.float()),
        wording(
            "kernels.dtype-refused",
            tensor="cache",
            dtype="float32",
            wanted="float8_e4m3fn or uint8 or bfloat16",
        ),
    ),
    (
        swap("cache", strided(16 * 520, 520, 1)),
        wording("kernels.cache-strides-contract", strides="(8320, 520, 1)", page=8192, row=512),
    ),
    (
        swap("cache", strided(8192, 512, 2)),
        wording("kernels.cache-strides-contract", strides="(8192, 512, 2)", page=8192, row=512),
    ),
    (
        swap("cache", strided(4096, 512, 1)),
        wording("kernels.cache-strides-contract", strides="(4096, 512, 1)", page=8192, row=512),
    ),
]

DS_MLA_REFUSALS: list[tuple[Edit, str]] = [
    (
        add("inv_scale", torch.ones(80)),
        wording("kernels.inv-scale-layout", state="given", cache_layout="fp8_ds_mla"),
    ),
    (
        swap("cache", lambda c: c.contiguous().view(torch.float8_e4m3fn)),
        wording("kernels.cache-dtype", dtype="float8_e4m3fn", cache_layout="fp8_ds_mla", wanted="uint8"),
    ),
    (
        swap("cache", lambda c: c[..., :576]),
        wording("kernels.axis-size", tensor="cache", size=576, axis=2, wanted=584),
    ),
    (
        swap("cache", lambda c: c.transpose(0, 1).contiguous().transpose(0, 1)),
        wording("kernels.cache-strides-contract", strides="(584, 2920, 1)", page=9344, row=584),
    ),
    (
        put("swa_indices", (3, 5), 80),
        wording("kernels.slot-range", place="swa_indices[3, 5]", value=80, last=79),
    ),
]


@pytest.mark.parametrize(
    ("call", "edit", "message"),
    [
        *((made, edit, message) for edit, message in REFUSALS),
        *((ds_mla, edit, message) for edit, message in DS_MLA_REFUSALS),
    ],
    ids=[message for _, message in (*REFUSALS, *DS_MLA_REFUSALS)],
)
def test_refuses(call: Callable[[], Call], edit: Edit, message: str) -> None:
    OPERATION.validate(call())
    with pytest.raises(ContractError) as refused:
        OPERATION.validate(edited(call(), edit))
    assert re.match(f"swa_decode: {message}", str(refused.value))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("scalars", "conventions", "message"),
    [
        ({"scale": NAN}, {}, wording("kernels.scalar-finite", scalar="scale", value="nan")),
        ({"scale": INF}, {}, wording("kernels.scalar-finite", scalar="scale", value="inf")),
        ({"scale": "1"}, {}, wording("kernels.scalar-type", scalar="scale", value="1", wanted="float")),
        ({"output_lse": 1}, {}, wording("kernels.scalar-type", scalar="output_lse", value=1, wanted="bool")),
        (
            {"sm_scale": 1.0},
            {},
            wording("kernels.scalar-unknown", scalar="sm_scale", known="scale, output_lse"),
        ),
        (
            {},
            {"cache_layout": "fp8"},
            wording(
                "kernels.convention-value",
                convention="cache_layout",
                value="fp8",
                known="per_token_scale or fp8_ds_mla",
            ),
        ),
        (
            {},
            {"index_shape": "WT"},
            wording(
                "kernels.convention-value", convention="index_shape", value="WT", known="TW or T1W or 1TW"
            ),
        ),
        (
            {},
            {"cache_layout": "fp8_ds_mla"},
            wording("kernels.axis-size", tensor="cache", size=512, axis=2, wanted=584),
        ),
        (
            {},
            {"index_shape": "T1W"},
            wording("kernels.tensor-rank", tensor="swa_indices", shape="[4, 32]", rank=2, axes="T, 1, W"),
        ),
    ],
)
def test_refuses_scalars_and_conventions(
    scalars: dict[str, Any], conventions: dict[str, str], message: str
) -> None:
    call = made()
    changed = Call(call.tensors, {**call.scalars, **scalars}, {**call.conventions, **conventions})
    with pytest.raises(ContractError) as refused:
        OPERATION.validate(changed)
    assert re.match(f"swa_decode: {message}", str(refused.value))
    assert "\n" not in str(refused.value)


ACCEPTED: dict[str, Edit] = {
    "stale entries of any value": lambda t: (
        t["swa_indices"][0, 20:].fill_(-(2**31)),
        t["swa_indices"][1].fill_(2**31 - 1),
    ),
    "-1 anywhere": lambda t: t["swa_indices"][:, ::2].fill_(-1),
    "NaN in q, scales and sink": lambda t: (
        t["q"][0, 0, :2].copy_(torch.tensor([NAN, INF])),
        t["inv_scale"][:2].copy_(torch.tensor([NAN, -INF])),
        t.update(attn_sink=torch.tensor([NAN, -INF])),
    ),
    "bytes for codes": swap("cache", lambda c: c.view(torch.uint8)),
    "pages far apart": swap("cache", strided(9000, 512, 1)),
    "one page of any stride": lambda t: t.update(
        cache=torch.zeros(1, 256, 512, dtype=torch.uint8).as_strided((1, 256, 512), (7, 512, 1)),
        inv_scale=torch.ones(256),
    ),
    "a row stride of its own": swap("swa_indices", lambda i: torch.cat([i, i], 1)[:, :32]),
    "bfloat16 scales": swap("inv_scale", Tensor.bfloat16),
    "no requests": lambda t: t.update(
        {name: t[name][:0] for name in ("q", "swa_indices", "swa_lens")},
    ),
    "1 head": heads(1),
    "128 heads": heads(128),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name: str) -> None:
    OPERATION.validate(edited(made(), ACCEPTED[name]))


def test_touched_are_the_pages_attended_to() -> None:
    """By hand: requests on pages 1 and 3 of 5; a stale entry on page 4 and padding on none."""
    indices = torch.full((3, 32), 70, dtype=torch.int32)
    indices[0, :3] = torch.tensor([17, -1, 31])
    indices[2, :2] = torch.tensor([48, 16])
    lens = torch.tensor([3, 0, 2], dtype=torch.int32)
    for call in (made(lens=(3, 0, 2)), ds_mla(lens=(3, 0, 2))):
        given = edited(call, lambda t: t.update(swa_indices=indices, swa_lens=lens, **wider(t)))
        OPERATION.validate(given)
        touched = OPERATION.touched(given)
        assert touched["cache"].tolist() == [1, 3]
        assert touched["cache"].dtype == torch.int64
        if "inv_scale" in given.tensors:
            assert touched["inv_scale"].tolist() == [*range(16, 32), *range(48, 64)]
        assert set(touched) == set(given.tensors) & {"cache", "inv_scale"}


def wider(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A cache of 5 pages, whatever the call had."""
    if "inv_scale" in tensors:
        return {"cache": torch.zeros(5, 16, 512, dtype=torch.uint8), "inv_scale": torch.ones(80)}
    return {"cache": empty_ds_mla(5, 16)}


def test_nothing_attended_to_touches_nothing() -> None:
    touched = OPERATION.touched(made(lens=(0, 0)))
    assert {name: rows.tolist() for name, rows in touched.items()} == {"cache": [], "inv_scale": []}


@pytest.mark.parametrize("shape", ["TW", "T1W", "1TW"])
def test_renumbered_calls_compute_the_same(shape: str) -> None:
    """With the pages that are not stored taken away, from either layout and in every index shape."""
    for layout in ("per_token_scale", "fp8_ds_mla"):
        call = made(index_shape=shape, cache_layout=layout, spare_pages=9, holes=0.2, lens=(3, 0, 2))
        rows = OPERATION.touched(call)
        assert len(rows["cache"]) < len(call.tensors["cache"])
        kept = {name: call.tensors[name][index] for name, index in rows.items()}
        stored = {name: index.tolist() for name, index in rows.items()}
        small = Call({**call.tensors, **kept}, call.scalars, call.conventions)
        found = OPERATION.renumber(small, stored)
        again = Call({**small.tensors, **found}, call.scalars, call.conventions)
        OPERATION.validate(again)
        assert found["swa_indices"].shape == call.tensors["swa_indices"].shape
        assert found["swa_indices"].dtype == torch.int32
        one, other = (run_kernel(OPERATION, "reference", c) for c in (call, again))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_renumber_by_hand() -> None:
    call = made(lens=(4, 1))
    indices = torch.full((2, 32), 5_000, dtype=torch.int32)
    indices[0, :4] = torch.tensor([35, -1, 32, 15])
    indices[1, 0] = 79
    lens = torch.tensor([4, 1], dtype=torch.int32)
    small = edited(
        call,
        lambda t: t.update(
            swa_indices=indices,
            swa_lens=lens,
            cache=torch.zeros(3, 16, 512, dtype=torch.uint8),
            inv_scale=torch.ones(48),
        ),
    )
    slots = [*range(16), *range(32, 48), *range(64, 80)]
    found = OPERATION.renumber(small, {"cache": (0, 2, 4), "inv_scale": slots})["swa_indices"]
    assert found[0, :4].tolist() == [16 + 3, -1, 16, 15]
    assert found[1, 0] == 32 + 15
    assert bool((found[0, 4:] == -1).all() and (found[1, 1:] == -1).all())
    assert OPERATION.renumber(small, {}) == {}


@pytest.mark.parametrize(
    ("cache", "scales", "message"),
    [
        ((0, 4), None, wording("kernels.page-not-captured", place="swa_indices[0, 2]", slot=32)),
        ((), None, wording("kernels.page-not-captured", place="swa_indices[0, 0]", slot=3)),
        (
            (0, 2, 4),
            (0, 1, 2),
            wording("kernels.scales-captured", slots=3, cache_slots=48),
        ),
    ],
)
def test_a_page_that_is_not_stored_is_said(
    cache: tuple[int, ...], scales: tuple[int, ...] | None, message: str
) -> None:
    call = made(lens=(4, 0))
    call.tensors["swa_indices"][0, :4] = torch.tensor([3, -1, 32, 15])
    small = edited(call, swap("cache", lambda c: c[: len(cache)]))
    stored = {"cache": cache, "inv_scale": scales or [16 * page + i for page in cache for i in range(16)]}
    with pytest.raises(ContractError) as refused:
        OPERATION.renumber(small, stored)
    assert re.fullmatch(f"swa_decode: {message}", str(refused.value))


def test_every_request_owns_its_rows() -> None:
    call = made()
    for name in ("o", "lse"):
        partition = OPERATION.partition(call, name)
        assert partition.regions == tuple(Region(i, i + 1, i) for i in range(4))
        assert partition.head_axis == 1
    with pytest.raises(KeyError):
        OPERATION.partition(call, "q")


def test_outputs() -> None:
    assert OPERATION.outputs(made(output_lse=False)) == {"o": ((4, 2, 512), torch.bfloat16)}
    assert OPERATION.outputs(made())["lse"] == ((4, 2), torch.float32)


@pytest.mark.parametrize("one", ["TW", "T1W", "1TW"])
@pytest.mark.parametrize("other", ["TW", "T1W", "1TW"])
def test_index_shapes_convert(one: str, other: str) -> None:
    plain = made().tensors["swa_indices"]
    shapes = {"TW": (4, 32), "T1W": (4, 1, 32), "1TW": (1, 4, 32)}
    call = made(index_shape=one)
    assert tuple(call.tensors["swa_indices"].shape) == shapes[one]
    found = OPERATION.convert(call, {"index_shape": other})
    OPERATION.validate(found)
    assert tuple(found.tensors["swa_indices"].shape) == shapes[other]
    assert torch.equal(found.tensors["swa_indices"].flatten(), plain.flatten())
    assert found.conventions == {"cache_layout": "per_token_scale", "index_shape": other}
    assert one == other or ("index_shape", one, other) in OPERATION.conversions


def test_one_layout_does_not_become_another() -> None:
    with pytest.raises(ContractError) as refused:
        OPERATION.convert(made(), {"cache_layout": "fp8_ds_mla"})
    assert re.fullmatch(
        "swa_decode: " + wording("kernels.layout-rounds", layout="per_token_scale", wanted="fp8_ds_mla"),
        str(refused.value),
    )


def test_what_compiled_kernels_serve_is_in_the_contract() -> None:
    known = {convention.name: convention.values for convention in OPERATION.conventions}
    assert SERVED.keys() == known.keys()
    assert all(set(values) <= set(known[name]) for name, values in SERVED.items())
    assert "bfloat16" not in SERVED["cache_layout"]
