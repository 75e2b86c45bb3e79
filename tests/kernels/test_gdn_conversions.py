# SPDX-License-Identifier: Apache-2.0
"""Calls of the two operations in other conventions: against the formulas in fp64, and there and back."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from gdnbench.ops import operations
from gdnbench_kernels.contract import Call, ContractError, Operation
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from tests.kernels.gdn_contract_calls import add, decode, edited, prefill, swap
from tests.messages import wording

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("wanted", ["log", "linear"])
def test_raw_gates_convert_in_fp32(wanted: str) -> None:
    call = decode(gate="raw", beta=(0.0, 2.0), dt_bias_dtype="bfloat16")
    found = DECODE.convert(call, {"gate": wanted})
    DECODE.validate(found)
    assert found.conventions == {**call.conventions, "gate": wanted}
    assert not {"A_log", "dt_bias"} & found.tensors.keys()
    a, b, rate, bias = (call.tensors[name].double() for name in ("g", "beta", "A_log", "dt_bias"))
    g = -rate.exp() * (a + bias).exp().log1p()
    exact = {"g": g if wanted == "log" else g.exp(), "beta": 2 / (1 + (-b).exp())}
    for name, expected in exact.items():
        assert found.tensors[name].dtype == torch.float32
        # The sum a + dt_bias of some -5 and +-10 is off by 2^-24 of itself, which moves softplus by 10 times
        # that at most, in parts of itself; exp of A_log of at most 3, sigmoid and the products a few more.
        torch.testing.assert_close(found.tensors[name].double(), expected, rtol=32 * 2**-24, atol=2**-126)


@pytest.mark.parametrize("gate", ["log", "linear"])
def test_nothing_converts_to_raw_gates(gate: str) -> None:
    fixed = wording(
        "kernels.convention-fixed",
        name="gate",
        current=gate,
        wanted="raw",
        reason=re.compile(wording("kernels.gate-made")),
        convention=gate,
    )
    with pytest.raises(ContractError, match=f"^gdn_decode: {fixed}$"):
        DECODE.convert(decode(gate=gate), {"gate": "raw"})


@pytest.mark.parametrize(
    ("op", "call", "state"), [(PREFILL, prefill(), "initial_state"), (DECODE, decode(), "state")]
)
def test_states_and_gates_convert_and_come_back(op: Operation, call: Call, state: str) -> None:
    other = op.convert(call, {"gate": "linear", "state_layout": "KV"})
    assert other.conventions == {
        "gate": "linear",
        "state_layout": "KV",
        "qk": "normalised",
        "offsets": "any",
    }
    assert other.tensors[state].is_contiguous()
    assert other.tensors[state].equal(call.tensors[state].mT)
    assert other.tensors["g"].equal(torch.exp(call.tensors["g"]))
    assert other.tensors["v"] is call.tensors["v"]
    op.validate(other)
    back = op.convert(other, call.conventions)
    assert back.tensors[state].equal(call.tensors[state])
    # exp and log each round once in fp32: log(x (1 + d)) = log x + d, hence an absolute error.
    torch.testing.assert_close(back.tensors["g"], call.tensors["g"], rtol=2**-23, atol=2**-23)
    name = "final_state" if state == "initial_state" else "state"
    outputs = {name: other.tensors[state], "o": call.tensors["v"]}
    converted = op.convert_outputs(outputs, other.conventions, call.conventions)
    assert converted[name].equal(call.tensors[state])
    assert converted["o"] is outputs["o"]


@pytest.mark.parametrize(
    ("op", "call", "name"), [(PREFILL, prefill(), "cu_seqlens"), (DECODE, decode(), "state_indices")]
)
def test_index_tensors_convert_and_are_held_to_their_dtype(op: Operation, call: Call, name: str) -> None:
    wide = op.convert(call, {"offsets": "int64"})
    assert (call.tensors[name].dtype, wide.tensors[name].dtype) == (torch.int32, torch.int64)
    assert wide.tensors[name].tolist() == call.tensors[name].tolist()
    op.validate(wide)
    broken = Call({**wide.tensors, name: call.tensors[name]}, wide.scalars, wide.conventions)
    with pytest.raises(
        ContractError, match=wording("kernels.offsets-dtype", name=name, dtype="int32", wanted="int64")
    ):
        op.validate(broken)


def test_gate_conversion_at_its_ends() -> None:
    g = torch.tensor([[-INF, -0.0, NAN, -200.0]])
    linear = PREFILL.convert(edited(prefill(seqlens=(1,)), add("g", g)), {"gate": "linear"})
    assert linear.tensors["g"][0, :2].tolist() == [0.0, 1.0]
    assert linear.tensors["g"][0, 2].isnan()
    assert linear.tensors["g"][0, 3] == 0  # below fp32: the gate is closed
    back = PREFILL.convert(linear, {"gate": "log"}).tensors["g"]
    assert back[0, [0, 1, 3]].tolist() == [-INF, 0.0, -INF]


def test_gates_in_bf16_convert_to_fp32() -> None:
    call = edited(prefill(), swap("g", Tensor.bfloat16))
    converted = PREFILL.convert(call, {"gate": "linear"}).tensors["g"]
    assert converted.dtype == torch.float32
    assert converted.equal(call.tensors["g"].float().exp())


def test_raw_keys_are_normalised_in_fp32_and_stored_in_their_dtype() -> None:
    call = prefill(qk="raw")
    converted = PREFILL.convert(call, {"qk": "normalised"})
    for name in ("q", "k"):
        wide = call.tensors[name].double()
        exact = wide / (wide.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        assert converted.tensors[name].dtype == torch.bfloat16
        # One rounding to bf16; fp32 before it could only move a tie.
        assert ((converted.tensors[name].double() - exact).abs() <= 2**-8 * exact.abs()).all()


@pytest.mark.parametrize(("op", "call"), [(PREFILL, prefill()), (DECODE, decode())])
def test_normalised_keys_cannot_become_raw(op: Operation, call: Call) -> None:
    with pytest.raises(ContractError) as refused:
        op.convert(call, {"qk": "raw"})
    assert re.fullmatch(
        f"{op.name}: "
        + wording(
            "kernels.convention-fixed",
            name="qk",
            current="normalised",
            wanted="raw",
            reason=re.compile(wording("kernels.qk-normalised")),
            convention="normalised",
        ),
        str(refused.value),
    )


def test_every_possible_conversion_is_described() -> None:
    for op in operations().values():
        pairs = {(c.name, a, b) for c in op.conventions for a in c.values for b in c.values if a != b}
        impossible = {pair for pair in pairs if pair[0] in ("cache_layout", "extra_layout")}  # packing rounds
        impossible |= {("extra_index_form", "indices", "block_table")}
        impossible |= {("qk", "normalised", "raw"), ("beta_form", "value", "logit")}
        impossible |= {pair for pair in pairs if pair[0] == "gate" and pair[2] in ("raw", "bounded")}
        assert set(op.conversions) == pairs - impossible
