# SPDX-License-Identifier: Apache-2.0
"""What the two operations promise and refuse: tables, validation, partitions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.ops import operations
from gdnbench_kernels.contract import Call, ContractError, Operation, Region
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from tests.kernels.gdn_contract_calls import add, decode, edited, prefill, put, swap
from tests.messages import wording

NAN, INF = float("nan"), float("inf")


def drop(name: str) -> Callable[[dict[str, Tensor]], None]:
    def edit(tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    return edit


def offsets(*values: int) -> Callable[[dict[str, Tensor]], None]:
    return add("cu_seqlens", torch.tensor(values, dtype=torch.int32))


PREFILL_REFUSALS = [
    (drop("beta"), wording("kernels.tensor-missing", tensor="beta", axes="T, Hv")),
    (
        add("initial_state", None),  # type: ignore[arg-type]
        wording(
            "kernels.no-tensor",
            tensor="initial_state",
            found="NoneType",
            dtypes="float32 or bfloat16 or float16",
        ),
    ),
    (
        add("alpha", torch.zeros(1)),
        wording(
            "kernels.tensor-unknown",
            tensor="alpha",
            known="q, k, v, g, beta, cu_seqlens, initial_state, chunk_indices, chunk_offsets",
        ),
    ),
    (add("o", torch.zeros(1)), wording("kernels.tensor-unknown", tensor="o")),
    (
        swap("q", Tensor.double),
        wording(
            "kernels.dtype-refused", tensor="q", dtype="float64", wanted="bfloat16 or float16 or float32"
        ),
    ),
    (
        swap("k", Tensor.half),
        wording("kernels.dtypes-differ", tensor="k", dtype="float16", other="q", other_dtype="bfloat16"),
    ),
    (
        swap("cu_seqlens", Tensor.float),
        wording("kernels.dtype-refused", tensor="cu_seqlens", dtype="float32", wanted="int32 or int64"),
    ),
    (
        swap("v", lambda v: v.flatten(1)),
        wording("kernels.tensor-rank", tensor="v", shape="[7, 16]", rank=2, axes="T, Hv, V"),
    ),
    (
        swap("k", lambda k: k[:, :, :4]),
        wording(
            "kernels.axis-differs",
            tensor="k",
            symbol="K",
            size=4,
            axis=2,
            source="q",
            source_symbol="K",
            source_size=8,
        ),
    ),
    (
        swap("beta", lambda b: b[:5]),
        wording(
            "kernels.axis-differs",
            tensor="beta",
            symbol="T",
            size=5,
            axis=0,
            source="q",
            source_symbol="T",
            source_size=7,
        ),
    ),
    (swap("initial_state", lambda s: s[:2]), "initial_state has N = 2 on axis 0; cu_seqlens has N = 3"),
    (swap("initial_state", lambda s: s.mT), "initial_state has V = 8 on axis 2; v has V = 4"),
    (
        lambda t: t.update(
            v=t["v"][:, :3], g=t["g"][:, :3], beta=t["beta"][:, :3], initial_state=t["initial_state"][:, :3]
        ),
        wording("kernels.head-multiple", value_heads=3, heads=2),
    ),
    (
        lambda t: t.update(q=t["q"][..., :0], k=t["k"][..., :0], initial_state=t["initial_state"][..., :0]),
        wording("kernels.key-empty"),
    ),
    (offsets(1, 3, 3, 7), wording("kernels.offsets-start", value=1)),
    (offsets(0, 4, 3, 7), wording("kernels.offsets-decrease", index=2, value=3, previous=1, value_before=4)),
    (offsets(0, 3, 8, 7), wording("kernels.offsets-past", index=2, value=8, tokens=7)),
    (offsets(0, 3, 3, 9), wording("kernels.offsets-past", index=3, value=9, tokens=7)),
    (offsets(0, 3, 3, 6), wording("kernels.offsets-end", index=3, value=6, tokens=7)),
    (offsets(), wording("kernels.axis-short", tensor="cu_seqlens", size=0, axis=0, symbol="N+1", least=1)),
    (
        put("g", (2, 1), 0.5),
        wording("kernels.element-range", place="g[2, 1]", value="0.5", low="-inf", high=0),
    ),
    (
        put("beta", (6, 3), 1.0000001),
        wording("kernels.element-range", place="beta[6, 3]", value="1.00000012", low=0, high=1),
    ),
    (
        put("beta", (0, 0), -1e-6),
        wording("kernels.element-range", place="beta[0, 0]", value="-9.99999997e-07", low=0, high=1),
    ),
    (
        add("chunk_offsets", torch.tensor([0, 1, 2, 2])),
        r"chunk_offsets\[2\] is 2; chunks of 64 over cu_seqlens makes it 1",
    ),
    (
        add("chunk_indices", torch.tensor([[0, 0], [1, 0], [9, 9]])),
        r"chunk_indices\[1, 0\] is 1; chunks of 64 over cu_seqlens makes it 2",
    ),
    (
        add("chunk_indices", torch.tensor([[0, 0]])),
        wording("kernels.chunk-rows", rows=1, why="chunks of 64 over cu_seqlens", chunks=2),
    ),
    (
        add("chunk_indices", torch.zeros(2, 3, dtype=torch.int32)),
        wording("kernels.axis-size", tensor="chunk_indices", size=3, axis=1, wanted=2),
    ),
]


@pytest.mark.parametrize(("edit", "message"), PREFILL_REFUSALS, ids=[m for _, m in PREFILL_REFUSALS])
def test_prefill_refuses(edit: Callable[[dict[str, Tensor]], None], message: str) -> None:
    with pytest.raises(ContractError) as refused:
        PREFILL.validate(edited(prefill(), edit))
    assert re.match(f"gdn_prefill: {message}", str(refused.value))
    assert "\n" not in str(refused.value)


def indices(*rows: list[int]) -> Callable[[dict[str, Tensor]], None]:
    return add("state_indices", torch.tensor(rows, dtype=torch.int32))


DECODE_REFUSALS = [
    (drop("state"), wording("kernels.tensor-missing", tensor="state", axes="slots, Hv, V, K")),
    (
        put("state_indices", (1, 0), 8),
        wording("kernels.slot-range", place="state_indices[1, 0]", value=8, last=7),
    ),
    (
        put("state_indices", (2, 1), -2),
        wording("kernels.slot-range", place="state_indices[2, 1]", value=-2, last=7),
    ),
    (
        put("num_accepted", (1,), 0),
        wording("kernels.element-range", place="num_accepted[1]", value=0, low=1, high="S = 2"),
    ),
    (
        put("num_accepted", (2,), 3),
        wording("kernels.element-range", place="num_accepted[2]", value=3, low=1, high="S = 2"),
    ),
    (
        indices([0, 1], [2, 3], [4, 1]),
        wording("kernels.slot-race", place="state_indices[2, 1]", slot=1, other="state_indices[0, 1]"),
    ),
    (
        indices([5, 1], [2, 5], [4, 7]),
        wording("kernels.slot-race", place="state_indices[1, 1]", slot=5, other="state_indices[0, 0]"),
    ),
    (
        swap("num_accepted", Tensor.long),
        wording("kernels.dtype-refused", tensor="num_accepted", dtype="int64", wanted="int32"),
    ),
    (
        swap("state", lambda s: s[:, :2]),
        wording(
            "kernels.axis-differs",
            tensor="state",
            symbol="Hv",
            size=2,
            axis=1,
            source="v",
            source_symbol="Hv",
            source_size=4,
        ),
    ),
    (
        swap("state_indices", lambda i: i[:, 0]),
        wording("kernels.tensor-rank", tensor="state_indices", shape="[3]", rank=1, axes="B, S"),
    ),
    (
        put("beta", (0, 1, 2), 2.0),
        wording("kernels.element-range", place="beta[0, 1, 2]", value=2, low=0, high=1),
    ),
    (
        put("g", (2, 0, 3), 1.0),
        wording("kernels.element-range", place="g[2, 0, 3]", value=1, low="-inf", high=0),
    ),
    (
        lambda t: t.update({name: t[name][:, :0] for name in ("q", "k", "v", "g", "beta", "state_indices")}),
        wording("kernels.sequence-empty"),
    ),
]


@pytest.mark.parametrize(("edit", "message"), DECODE_REFUSALS, ids=[m for _, m in DECODE_REFUSALS])
def test_decode_refuses(edit: Callable[[dict[str, Tensor]], None], message: str) -> None:
    with pytest.raises(ContractError) as refused:
        DECODE.validate(edited(decode(), edit))
    assert re.fullmatch(f"gdn_decode: {message}", str(refused.value))


RAW_REFUSALS = [
    (drop("A_log"), wording("kernels.raw-gate-missing", tensor="A_log")),
    (drop("dt_bias"), wording("kernels.raw-gate-missing", tensor="dt_bias")),
    (
        swap("A_log", Tensor.bfloat16),
        wording("kernels.dtype-refused", tensor="A_log", dtype="bfloat16", wanted="float32"),
    ),
    (
        swap("dt_bias", Tensor.half),
        wording("kernels.dtype-refused", tensor="dt_bias", dtype="float16", wanted="float32 or bfloat16"),
    ),
    (
        swap("A_log", lambda x: x[:2]),
        wording(
            "kernels.axis-differs",
            tensor="A_log",
            symbol="Hv",
            size=2,
            axis=0,
            source="v",
            source_symbol="Hv",
            source_size=4,
        ),
    ),
]


@pytest.mark.parametrize(("edit", "message"), RAW_REFUSALS, ids=[m for _, m in RAW_REFUSALS])
def test_raw_gates_refuse(edit: Callable[[dict[str, Tensor]], None], message: str) -> None:
    with pytest.raises(ContractError) as refused:
        DECODE.validate(edited(decode(gate="raw"), edit))
    assert re.fullmatch(f"gdn_decode: {message}", str(refused.value))


def test_raw_gates_may_have_any_value_and_others_no_part_of_them() -> None:
    DECODE.validate(edited(decode(gate="raw"), put("g", (0, 0, 0), 1e4)))
    DECODE.validate(edited(decode(gate="raw"), put("beta", (0, 0, 0), -1e4)))
    with pytest.raises(ContractError, match=wording("kernels.raw-gate-given", tensor="A_log", gate="log")):
        DECODE.validate(edited(decode(), add("A_log", torch.zeros(4))))


def reads(*slots: int) -> Callable[[dict[str, Tensor]], None]:
    return add("read_indices", torch.tensor(slots, dtype=torch.int32))


READ_REFUSALS = [
    (reads(6, 7, 8), wording("kernels.slot-range", place="read_indices[2]", value=8, last=7)),
    (reads(6, -2, 6), wording("kernels.slot-range", place="read_indices[1]", value=-2, last=7)),
    (
        reads(2, 6, 7),
        wording("kernels.slot-read-race", place="read_indices[0]", slot=2, other="state_indices[1, 0]"),
    ),
    (
        reads(0, 6, 1),
        wording("kernels.slot-read-race", place="read_indices[2]", slot=1, other="state_indices[0, 1]"),
    ),
    (
        add("num_accepted", torch.tensor([1, 1, 1], dtype=torch.int32)),
        wording("kernels.read-slot-twice"),
    ),
    (
        indices([0, 1], [2, 3], [4, 1]),
        wording("kernels.slot-race", place="state_indices[2, 1]", slot=1, other="state_indices[0, 1]"),
    ),
]


def reading(*edits: Callable[[dict[str, Tensor]], None]) -> Call:
    """Sequences that write slots 0 .. 5 and read 6 and 7, then changed."""
    call = decode(speculative=False)
    for edit in (indices([0, 1], [2, 3], [4, 5]), reads(6, 6, 7), *edits):
        call = edited(call, edit)
    return call


@pytest.mark.parametrize(("edit", "message"), READ_REFUSALS, ids=[m for _, m in READ_REFUSALS])
def test_slots_to_read_refuse(edit: Callable[[dict[str, Tensor]], None], message: str) -> None:
    with pytest.raises(ContractError) as refused:
        DECODE.validate(reading(edit))
    assert re.fullmatch(f"gdn_decode: {message}", str(refused.value))


@pytest.mark.parametrize(
    "slots",
    [
        (6, 6, 6),  # of nobody, shared
        (1, 3, 4),  # of the sequence itself
        (-1, -1, -1),
        (-1, 0, 1),  # slots of a padding sequence are not written
    ],
)
def test_slots_to_read_are_accepted(slots: tuple[int, ...]) -> None:
    DECODE.validate(reading(reads(*slots)))


def test_slots_only_read_are_touched_and_must_keep_their_value() -> None:
    call = reading(reads(6, 6, -1), put("state_indices", (1, 0), -1))
    DECODE.validate(call)
    assert DECODE.touched(call)["state"].tolist() == [0, 1, 3, 6]
    assert DECODE.partition(call, "state").regions == (
        Region(0, 1, 0, token=0),
        Region(1, 2, 0, token=1),
        Region(3, 4, 1, token=1),
        Region(6, 7, 0),
    )
    assert [region.sequence for region in DECODE.partition(call, "o").regions] == [0, 1]


def test_slots_are_renumbered_for_a_pool_of_those_touched() -> None:
    call = reading(reads(6, 6, -1))
    assert DECODE.renumber is not None
    found = DECODE.renumber(call, {"state": (0, 1, 2, 3, 6)})
    assert found["state_indices"].tolist() == [[0, 1], [2, 3], [-1, -1]]  # the last one is padding
    assert found["read_indices"].tolist() == [4, 4, -1]
    assert found["state_indices"].dtype == found["read_indices"].dtype == torch.int32
    assert DECODE.renumber(call, {}) == {}
    with pytest.raises(
        ContractError, match=wording("kernels.slot-not-captured", tensor="read_indices", slot=6)
    ):
        DECODE.renumber(call, {"state": (0, 1, 2, 3)})


def test_conventions_of_the_other_operation_are_refused() -> None:
    with pytest.raises(
        ContractError,
        match="gdn_prefill: "
        + wording("kernels.convention-value", convention="gate", value="raw", known="log or linear"),
    ):
        PREFILL.convert(prefill(), {"gate": "raw"})
    with pytest.raises(
        ContractError,
        match="gdn_prefill: "
        + wording("kernels.convention-value", convention="gate", value="raw", known="log or linear"),
    ):
        prefill(gate="raw")


@pytest.mark.parametrize(
    ("scalars", "conventions", "message"),
    [
        (
            {"sale": 1.0},
            {},
            wording("kernels.scalar-unknown", scalar="sale", known="scale, chunk_size, output_final_state,"),
        ),
        ({"chunk_size": 0}, {}, wording("kernels.chunk-size", value=0)),
        (
            {"chunk_size": None},
            {},
            wording("kernels.scalar-type", scalar="chunk_size", value=None, wanted="int"),
        ),
        (
            {"chunk_size": True},
            {},
            wording("kernels.scalar-type", scalar="chunk_size", value=True, wanted="int"),
        ),
        ({"scale": "x"}, {}, wording("kernels.scalar-type", scalar="scale", value="x", wanted="float")),
        ({"scale": INF}, {}, wording("kernels.scalar-finite", scalar="scale", value="inf")),
        (
            {"output_final_state": 1},
            {},
            wording("kernels.scalar-type", scalar="output_final_state", value=1, wanted="bool"),
        ),
        ({"beta_max": 1.5}, {}, wording("kernels.beta-max", beta_max="1.5")),
        (
            {"final_state_dtype": "int8"},
            {},
            wording("kernels.state-dtype", value="int8", known="float32 or bfloat16"),
        ),
        (
            {},
            {"layout": "VK"},
            wording("kernels.convention-unknown", convention="layout", known="gate, state_layout, qk"),
        ),
        (
            {},
            {"gate": "exp"},
            wording("kernels.convention-value", convention="gate", value="exp", known="log or linear"),
        ),
    ],
)
def test_scalars_and_conventions_are_checked(
    scalars: dict[str, Any], conventions: dict[str, str], message: str
) -> None:
    call = prefill()
    with pytest.raises(ContractError) as refused:
        PREFILL.validate(Call(call.tensors, {**call.scalars, **scalars}, {**call.conventions, **conventions}))
    assert re.match(f"gdn_prefill: {message}", str(refused.value))


@pytest.mark.parametrize(
    "edit",
    [
        put("g", (2, 1), NAN),
        put("g", (2, 1), INF),
        put("g", (2, 1), -INF),
        put("beta", (2, 1), NAN),
        put("beta", (2, 1), INF),
        put("v", (2, 1, 0), -INF),
        put("beta", (2, 1), 1.0),
        put("g", (2, 1), 0.0),
        put("initial_state", (1, 1, 0, 0), NAN),
        offsets(0, 0, 0, 7),
        swap("cu_seqlens", Tensor.long),
        swap("beta", Tensor.bfloat16),
        swap("g", Tensor.bfloat16),
        drop("initial_state"),
        # Rows past total_chunks are whatever was in memory.
        add("chunk_indices", torch.tensor([[0, 0], [2, 0], [-7, 123456]], dtype=torch.int32)),
        add("chunk_offsets", torch.tensor([0, 1, 1, 2])),
    ],
)
def test_prefill_accepts(edit: Callable[[dict[str, Tensor]], None]) -> None:
    PREFILL.validate(edited(prefill(), edit))


@pytest.mark.parametrize(
    "edit",
    [
        indices([-1, -1], [2, 3], [-1, -1]),
        indices([-1, 4], [2, 3], [-1, -1]),  # sequence 0 reads -1 where it accepted 1, and writes nothing
        indices([0, 0], [1, 2], [3, 4]),  # one sequence, token after token
        drop("num_accepted"),
        swap("state_indices", Tensor.long),
        put("state", (0, 0, 0, 0), NAN),
    ],
)
def test_decode_accepts(edit: Callable[[dict[str, Tensor]], None]) -> None:
    call = edited(decode(), lambda tensors: tensors["num_accepted"].fill_(1))
    DECODE.validate(edited(call, edit))


def test_padding_slots_do_not_race() -> None:
    """The slots of a padding sequence are not written, so another may use them."""
    call = edited(decode(), lambda tensors: tensors["num_accepted"].fill_(1))
    DECODE.validate(edited(call, indices([-1, 4], [4, 3], [5, 6])))


def test_padding_sequences_may_hold_any_count() -> None:
    call = edited(decode(), indices([-1, -1], [2, 3], [4, 5]))
    DECODE.validate(edited(call, put("num_accepted", (0,), 0)))


def test_beta_max_two_widens_the_range() -> None:
    call = edited(prefill(), put("beta", (0, 0), 2.0))
    PREFILL.validate(Call(call.tensors, {**call.scalars, "beta_max": 2}, call.conventions))


def test_linear_gates_lie_between_zero_and_one() -> None:
    call = prefill(gate="linear")
    PREFILL.validate(edited(call, put("g", (0, 0), 0.0)))
    with pytest.raises(
        ContractError, match=wording("kernels.element-range", place="g[0, 0]", value="1.5", low=0, high=1)
    ):
        PREFILL.validate(edited(call, put("g", (0, 0), 1.5)))
    with pytest.raises(
        ContractError, match=wording("kernels.element-range", place="g[0, 0]", value="-0.5", low=0, high=1)
    ):
        PREFILL.validate(edited(call, put("g", (0, 0), -0.5)))


def test_state_axes_follow_the_layout() -> None:
    call = prefill(state_layout="KV")
    assert list(call.tensors["initial_state"].shape) == [3, 4, 8, 4]
    PREFILL.validate(call)
    differs = wording(
        "kernels.axis-differs",
        tensor="initial_state",
        symbol="V",
        size=8,
        axis=2,
        source="v",
        source_symbol="V",
        source_size=4,
    )
    with pytest.raises(ContractError, match=differs):
        PREFILL.validate(Call(call.tensors, call.scalars, {**call.conventions, "state_layout": "VK"}))


def regions(op: Operation, call: Call, name: str) -> list[tuple[int | None, ...]]:
    found: tuple[Region, ...] = op.partition(call, name).regions
    return [(r.start, r.stop, r.sequence, r.chunk, r.token, r.tokens) for r in found]


def test_prefill_partition() -> None:
    call = prefill(seqlens=(70, 0, 5))
    by_token = [(0, 64, 0, 0, 0, None), (64, 70, 0, 1, 64, None), (70, 75, 2, 0, 0, None)]
    for name in ("o", "g_cu"):
        assert regions(PREFILL, call, name) == by_token
    for name in ("U", "W", "V_new"):
        assert regions(PREFILL, call, name) == [
            (0, 64, 0, 0, 0, None),
            (64, 70, 0, 1, 64, None),
            (128, 133, 2, 0, 0, None),
        ]
    for name in ("A", "Ai", "P"):
        assert regions(PREFILL, call, name) == [
            (0, 1, 0, 0, None, 64),
            (1, 2, 0, 1, None, 6),
            (2, 3, 2, 0, None, 5),
        ]
    assert regions(PREFILL, call, "h") == [
        (i, i + 1, n, c, None, None) for i, n, c in ((0, 0, 0), (1, 0, 1), (2, 2, 0))
    ]
    assert regions(PREFILL, call, "final_state") == [(n, n + 1, n, None, None, None) for n in range(3)]
    names = [stage.tensor.name for stage in PREFILL.stages] + ["o", "final_state"]
    assert {PREFILL.partition(call, name).head_axis for name in names} == {1}
    with pytest.raises(KeyError):
        PREFILL.partition(call, "q")


def test_decode_partition() -> None:
    call = edited(decode(), indices([6, 1], [-1, -1], [0, 3]))
    assert regions(DECODE, call, "o") == [(0, 1, 0, None, None, None), (2, 3, 2, None, None, None)]
    assert regions(DECODE, call, "state") == [
        (slot, slot + 1, n, None, token, None)
        for slot, n, token in ((0, 2, 0), (1, 0, 1), (3, 2, 1), (6, 0, 0))
    ]
    assert (DECODE.partition(call, "o").head_axis, DECODE.partition(call, "o").token_axis) == (2, 1)
    assert DECODE.partition(call, "state").head_axis == 1
    assert DECODE.touched(call)["state"].tolist() == [0, 1, 3, 6]
    with pytest.raises(KeyError):
        DECODE.partition(call, "q")


def test_tables_are_consistent() -> None:
    for op in operations().values():
        names = [spec.name for spec in op.tensors] + [stage.tensor.name for stage in op.stages]
        assert len(names) == len(set(names))
        hf = {"hf"} if op.name.startswith("gdn_") else set()
        assert {"reference", "torch"} | hf <= set(op.kernels)
        for entry in op.kernels.values():
            for name, values in entry.conventions.items():
                assert set(values) <= {v for c in op.conventions if c.name == name for v in c.values}
        for spec in op.tensors:
            assert spec.pool_index is None or spec.pool_index in names
