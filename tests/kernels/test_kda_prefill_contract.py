# SPDX-License-Identifier: Apache-2.0
"""What kda_prefill promises and refuses: tables, validation, conversions, synthetic inputs. The checks that
it shares with gdn_prefill are tested on both."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.gdn_prefill.contract import OPERATION as GDN
from gdnbench_kernels.kda_prefill.contract import OPERATION
from tests.messages import wording

NAN, INF = float("nan"), float("inf")
Edit = Callable[[dict[str, Tensor]], None]


def made(**options: Any) -> Call:
    return OPERATION.synth(
        **{"seqlens": (3, 0, 18), "heads": (2, 4), "head_dim": (8, 4), "initial_state": True} | options
    )


def edited(call: Call, edit: Edit, **scalars: Any) -> Call:
    tensors = {name: tensor.clone() for name, tensor in call.tensors.items()}
    edit(tensors)
    return Call(tensors, {**call.scalars, **scalars}, call.conventions)


def put(name: str, position: tuple[int, ...], value: float) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name][position] = value

    return edit


def swap(name: str, change: Callable[[Tensor], Tensor]) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name] = change(tensors[name])

    return edit


def add(name: str, tensor: Tensor) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensor

    return edit


def drop(name: str) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    return edit


def offsets(*values: int) -> Edit:
    return add("cu_seqlens", torch.tensor(values, dtype=torch.int32))


def nothing(tensors: dict[str, Tensor]) -> None:
    pass


def axis_differs(tensor: str, symbol: str, size: int, axis: int, source: str, source_size: int) -> str:
    return wording(
        "kernels.axis-differs",
        tensor=tensor,
        symbol=symbol,
        size=size,
        axis=axis,
        source=source,
        source_symbol=symbol,
        source_size=source_size,
    )


LOG: dict[str, str] = {}
RAW, BOUNDED, LOGIT = {"gate": "raw"}, {"gate": "bounded"}, {"beta_form": "logit"}
KNOWN = "q, k, v, g, beta, cu_seqlens, initial_state, chunk_indices, chunk_offsets, A_log, dt_bias"
REFUSALS: list[tuple[dict[str, str], Edit, dict[str, Any], str]] = [
    (LOG, drop("g"), {}, wording("kernels.tensor-missing", tensor="g", axes="T, Hv, K")),
    (LOG, add("a", torch.zeros(1)), {}, wording("kernels.tensor-unknown", tensor="a", known=KNOWN)),
    (
        LOG,
        swap("g", lambda g: g[..., 0]),
        {},
        wording("kernels.tensor-rank", tensor="g", shape="[21, 4]", rank=2, axes="T, Hv, K"),
    ),
    (LOG, swap("g", lambda g: g[..., :4]), {}, axis_differs("g", "K", 4, 2, "q", 8)),
    (LOG, swap("g", lambda g: g[:, :2]), {}, axis_differs("g", "Hv", 2, 1, "v", 4)),
    (
        LOG,
        swap("g", Tensor.double),
        {},
        wording(
            "kernels.dtype-refused", tensor="g", dtype="float64", wanted="float32 or bfloat16 or float16"
        ),
    ),
    (
        LOG,
        put("g", (2, 1, 7), 0.5),
        {},
        wording("kernels.element-range", place="g[2, 1, 7]", value="0.5", low="-inf", high=0),
    ),
    (
        LOG,
        put("beta", (6, 3), 1.5),
        {},
        wording("kernels.element-range", place="beta[6, 3]", value="1.5", low=0, high=1),
    ),
    (
        RAW,
        put("beta", (6, 3), -0.5),
        {},
        wording("kernels.element-range", place="beta[6, 3]", value="-0.5", low=0, high=1),
    ),
    (LOG, add("A_log", torch.zeros(4)), {}, wording("kernels.channel-gate-given", tensor="A_log")),
    (LOG, add("dt_bias", torch.zeros(4, 8)), {}, wording("kernels.channel-gate-given", tensor="dt_bias")),
    (RAW, drop("A_log"), {}, wording("kernels.channel-rate-missing", tensor="A_log", axes="[Hv]")),
    (
        RAW,
        swap("A_log", Tensor.bfloat16),
        {},
        wording("kernels.dtype-refused", tensor="A_log", dtype="bfloat16", wanted="float32"),
    ),
    (
        RAW,
        swap("dt_bias", Tensor.half),
        {},
        wording("kernels.dtype-refused", tensor="dt_bias", dtype="float16", wanted="float32 or bfloat16"),
    ),
    (
        RAW,
        swap("dt_bias", Tensor.flatten),
        {},
        wording("kernels.tensor-rank", tensor="dt_bias", shape="[32]", rank=1, axes="Hv, K"),
    ),
    (RAW, swap("A_log", lambda x: x[:2]), {}, axis_differs("A_log", "Hv", 2, 0, "v", 4)),
    (RAW, nothing, {"lower_bound": -5.0}, wording("kernels.lower-bound-given", gate="raw")),
    (LOG, nothing, {"lower_bound": -5.0}, wording("kernels.lower-bound-given", gate="log")),
    (BOUNDED, nothing, {"lower_bound": None}, wording("kernels.lower-bound-value", value=None)),
    (BOUNDED, nothing, {"lower_bound": 0.0}, wording("kernels.lower-bound-value", value="0.0")),
    (BOUNDED, nothing, {"lower_bound": 5.0}, wording("kernels.lower-bound-value", value="5.0")),
    (
        BOUNDED,
        nothing,
        {"lower_bound": -INF},
        wording("kernels.scalar-finite", scalar="lower_bound", value="-inf"),
    ),
    (LOGIT, nothing, {"beta_max": 1.5}, wording("kernels.beta-max", beta_max="1.5")),
    (LOG, nothing, {"chunk_size": 0}, wording("kernels.chunk-size", value=0)),
    *(
        (
            LOG,
            nothing,
            {"chunk_size": size},
            wording("kernels.scalar-large", scalar="chunk_size", limit=2**31 - 1),
        )
        for size in (2**31, 2**63 - 1, 2**70)  # sums of the second are negative, the third is no int64
    ),
    (
        LOG,
        nothing,
        {"final_state_dtype": "float64"},
        r"scalar final_state_dtype is 'float64'; it must be float32 or bfloat16 or float16",
    ),
    (
        LOG,
        nothing,
        {"sale": 1.0},
        wording(
            "kernels.scalar-unknown",
            scalar="sale",
            known="scale, chunk_size, output_final_state, final_state_dtype, beta_max, lower_bound",
        ),
    ),
    (LOG, offsets(1, 3, 3, 21), {}, wording("kernels.offsets-start", value=1)),
    (LOG, offsets(0, 3, 3, 20), {}, wording("kernels.offsets-end", index=3, value=20, tokens=21)),
    (LOG, offsets(0, 3, 22, 21), {}, wording("kernels.offsets-past", index=2, value=22, tokens=21)),
    (
        LOG,
        offsets(0, 4, 3, 21),
        {},
        wording("kernels.offsets-decrease", index=2, value=3, previous=1, value_before=4),
    ),
    (LOG, swap("initial_state", lambda s: s.mT), {}, "initial_state has V = 8 on axis 2; v has V = 4"),
    (
        LOG,
        add("chunk_offsets", torch.tensor([0, 1, 1, 2])),
        {},
        r"chunk_offsets\[3\] is 2; chunks of 16 over cu_seqlens makes it 3",
    ),
    (
        LOG,
        add("chunk_indices", torch.tensor([[0, 0], [2, 0]])),
        {},
        wording("kernels.chunk-rows", rows=2, why="chunks of 16 over cu_seqlens", chunks=3),
    ),
    (
        LOG,
        lambda t: t.update(
            v=t["v"][:, :3], g=t["g"][:, :3], beta=t["beta"][:, :3], initial_state=t["initial_state"][:, :3]
        ),
        {},
        wording("kernels.head-multiple", value_heads=3, heads=2),
    ),
]


@pytest.mark.parametrize(
    ("options", "edit", "scalars", "message"), REFUSALS, ids=[one[-1] for one in REFUSALS]
)
def test_refusals(options: dict[str, str], edit: Edit, scalars: dict[str, Any], message: str) -> None:
    OPERATION.validate(made(**options))
    with pytest.raises(ContractError) as refused:
        OPERATION.validate(edited(made(**options), edit, **scalars))
    assert re.fullmatch(f"kda_prefill: {message}", str(refused.value))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "edit"),
    [
        (LOG, put("g", (2, 1, 0), NAN)),
        (LOG, put("g", (2, 1, 0), INF)),
        (LOG, put("g", (2, 1, 0), -INF)),
        (LOG, put("g", (2, 1, 0), -1e30)),
        (RAW, put("g", (2, 1, 0), 1e4)),
        (BOUNDED, put("g", (2, 1, 0), -1e4)),
        (LOGIT, put("beta", (2, 1), -1e4)),
        (RAW, drop("dt_bias")),
        (BOUNDED, drop("A_log")),
        (BOUNDED, drop("dt_bias")),
        (LOG, drop("initial_state")),
        (LOG, swap("cu_seqlens", Tensor.long)),
        (LOG, add("chunk_indices", torch.tensor([[0, 0], [2, 0], [2, 1], [-7, 9]], dtype=torch.int32))),
    ],
)
def test_acceptances(options: dict[str, str], edit: Edit) -> None:
    OPERATION.validate(edited(made(**options), edit))


def test_everything_converts_to_the_defaults() -> None:
    """And not back. The step size and the decay are those of the formulas, from what the call holds."""
    for gate in ("raw", "bounded"):
        call = made(gate=gate, beta_form="logit", state_layout="KV", beta=(0.0, 2.0), gate_span=(10.0, 200.0))
        found = OPERATION.convert(call, OPERATION.default_conventions | {"offsets": "any"})
        OPERATION.validate(found)
        assert found.conventions == OPERATION.default_conventions
        assert not {"A_log", "dt_bias"} & found.tensors.keys()
        assert "lower_bound" not in found.scalars
        assert found.tensors["initial_state"].equal(call.tensors["initial_state"].mT)
        x, b, rate, bias = (call.tensors[name].double() for name in ("g", "beta", "A_log", "dt_bias"))
        rate = rate.exp()[:, None]
        raw, bounded = -rate * (x + bias).exp().log1p(), -5 / (1 + (-rate * (x + bias)).exp())
        exact = {"g": raw if gate == "raw" else bounded, "beta": 2 / (1 + (-b).exp())}
        for name, expected in exact.items():
            assert found.tensors[name].dtype == torch.float32
            # A relative error r of an argument z moves softplus or a sigmoid by at most |z| r of itself, and
            # |z| is below 25 here: gates below 1e-9 are not drawn. The sum, exp(A_log) with |A_log| < 3, the
            # product and the function are 6 roundings of 2^-24 at most.
            torch.testing.assert_close(
                found.tensors[name].double(), expected, rtol=6 * 25 * 2**-24, atol=2**-126
            )


@pytest.mark.parametrize(
    ("convention", "options", "wanted"),
    [
        ("gate", LOG, "raw"),
        ("gate", LOG, "bounded"),
        ("gate", RAW, "bounded"),
        ("gate", BOUNDED, "raw"),
        ("beta_form", LOG, "logit"),
    ],
)
def test_nothing_converts_to_inputs_of_gates(convention: str, options: dict[str, str], wanted: str) -> None:
    call = made(**options)
    current = call.conventions[convention]
    reason = wording("kernels.gate-made") if convention == "gate" else wording("kernels.step-size-made")
    fixed = wording(
        "kernels.convention-fixed",
        name=convention,
        current=current,
        wanted=wanted,
        reason=re.compile(reason),
        convention=current,
    )
    with pytest.raises(ContractError, match=f"^kda_prefill: {fixed}$"):
        OPERATION.convert(call, {convention: wanted})


def test_rows_belong_to_chunks_of_16() -> None:
    call = made(seqlens=(3, 0, 34))
    regions = OPERATION.partition(call, "U").regions
    assert [(r.start, r.stop, r.sequence, r.chunk, r.token) for r in regions] == [
        (0, 3, 0, 0, 0),
        (16, 32, 2, 0, 0),
        (32, 48, 2, 1, 16),
        (48, 50, 2, 2, 32),
    ]
    assert [(r.start, r.stop) for r in OPERATION.partition(call, "g_cu").regions] == [
        (0, 3),
        (3, 19),
        (19, 35),
        (35, 37),
    ]
    assert OPERATION.absent["chunk_offsets"](call).tolist() == [0, 1, 1, 4]
    assert OPERATION.absent["chunk_indices"](call)[:4].tolist() == [[0, 0], [2, 0], [2, 1], [2, 2]]


def test_the_shared_parts_of_the_contract_are_those_of_gdn() -> None:
    ours, theirs = ({spec.name: spec for spec in op.tensors} for op in (OPERATION, GDN))
    assert theirs.keys() - ours.keys() == set()
    assert ours.keys() - theirs.keys() == {"A_log", "dt_bias"}
    assert {name for name in theirs if ours[name] != theirs[name]} == {"g", "beta"}
    assert [stage.tensor.name for stage in OPERATION.stages] == [stage.tensor.name for stage in GDN.stages]


WIDE: dict[str, Any] = {"seqlens": (6400,), "heads": (1, 2), "head_dim": (16, 4), "initial_state": False}


def test_a_span_is_a_channel_or_a_head() -> None:
    by_channel = -made(**WIDE, gate_span=(1e-2, 1e4)).tensors["g"].sum(0) / 100
    assert float(by_channel.min()) > 0.9e-2
    assert float(by_channel.max()) < 1.1e4
    for head in by_channel:  # both ends in each head: 16 log-uniform draws of six decades
        assert float(head.max() / head.min()) > 1e2
    by_head = -made(**WIDE, gate_span=(1e-2, 1e4), gate_span_of="head").tensors["g"].sum(0) / 100
    for (
        head
    ) in by_head:  # the sum of 6400 uniform draws is off by 1 % at most, 3 deviations of 1 / sqrt(3 * 6400)
        assert float(head.max() / head.min()) < 1.1
    assert float(by_head[0].mean() / by_head[1].mean()) != pytest.approx(1, rel=0.5)


def test_a_spike_is_one_gate_of_each_block_and_channel() -> None:
    options: dict[str, Any] = {"seqlens": (130,), "heads": (1, 3), "head_dim": (8, 4), "gate_span": 1.0}
    plain, spiked = made(**options), made(**options, gate_spike=1e5)
    wide = spiked.tensors["g"] < -1e5 / 2
    for start in (0, 64, 128):
        assert (wide[start : start + 64].sum(0) == 1).all()
    assert not all(torch.equal(wide[:64, 0, 0], wide[:64, 0, c]) for c in range(8))
    assert torch.equal(plain.tensors["g"][~wide], spiked.tensors["g"][~wide])


def test_a_share_of_gates_is_closed() -> None:
    g = made(**WIDE, closed_gates=0.25).tensors["g"]
    assert float(g.isneginf().float().mean()) == pytest.approx(0.25, abs=0.01)
    assert made(**WIDE).tensors["g"].isfinite().all()


@pytest.mark.parametrize("gate", ["raw", "bounded"])
def test_inputs_of_gates_give_the_gates(gate: str) -> None:
    options: dict[str, Any] = {"gate_span": (1.0, 200.0), "beta": (0.1, 1.9), "gate_dtype": "float32"}
    plain = made(**options)
    inputs = made(**options, gate=gate, beta_form="logit", beta_dtype="float32")
    assert inputs.tensors["g"].dtype == inputs.tensors["beta"].dtype == torch.float32
    assert made(gate=gate, beta_form="logit").tensors["g"].dtype == torch.bfloat16
    found = OPERATION.convert(inputs, {"gate": "log", "beta_form": "value"})
    bound = -5.0 if gate == "bounded" else -INF
    # There and back in fp32: as above, twice. A sigmoid near 1 loses |z| of 1 - s, at most 2^-24 / 2^-20.
    for name, wanted in (("g", plain.tensors["g"].clamp(min=bound)), ("beta", plain.tensors["beta"])):
        torch.testing.assert_close(found.tensors[name], wanted, rtol=2 * 6 * 25 * 2**-24, atol=2**-20)


SYNTH_REFUSALS = [
    ({"gate_span_of": "token"}, wording("kernels.gate-span-of", value="token", known="channel or head")),
    ({"closed_gates": 1.5}, wording("kernels.closed-gates", share="1.5")),
    ({"gate": "bounded", "lower_bound": 0.0}, wording("kernels.lower-bound-option", value="0")),
    ({"seqlens": (3, -1)}, wording("kernels.length-negative", length=-1)),
    (
        {"gate": "linear"},
        wording("kernels.convention-value", convention="gate", value="linear", known="log or raw or bounded"),
    ),
    ({"nan_at": (21,)}, "kda_prefill: nan_at names token 21; there are 21"),
]


@pytest.mark.parametrize(("options", "message"), SYNTH_REFUSALS, ids=[m for _, m in SYNTH_REFUSALS])
def test_options_that_make_no_call_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        made(**options)
