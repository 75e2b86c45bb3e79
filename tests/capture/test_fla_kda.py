# SPDX-License-Identifier: Apache-2.0
"""The adapter of flash-linear-attention's Kimi Delta Attention, on functions with its signatures that compute
the definition."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import capturing
from tests.capture.frameworks import framework
from tests.capture.kda_calls import (
    HV,
    LOWER_BOUND,
    D,
    assert_parameters,
    assert_replays,
    gates,
    parameters,
    random,
    raw_gates,
    recorded,
    rows,
)

CHUNK, RECURRENT = "chunk_kda", "fused_recurrent_kda"
RAW = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "use_qk_l2norm_in_kernel": True}


@pytest.fixture(autouse=True)
def fla() -> Iterator[None]:
    with framework():
        yield


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x.float(), dim=-1).bfloat16()


def given(batch: int, tokens: int, **more: Any) -> dict[str, Any]:
    g, beta = gates(batch, tokens)
    q, k, v = rows(batch, tokens).values()
    return {"q": unit(q), "k": unit(k), "v": v, "g": g, "beta": beta, **more}


def raw(batch: int, tokens: int, **more: Any) -> dict[str, Any]:
    x, b = raw_gates(batch, tokens)
    A_log, dt_bias = parameters()
    layer = {"A_log": A_log.flatten(), "dt_bias": dt_bias}
    return {**rows(batch, tokens), "g": x, "beta": b, **RAW, **layer, **more}


def state(count: int) -> Tensor:
    return random(count, HV, D, D, seed=7)


OFFSETS = torch.tensor([0, 3, 3, 40])
PLAIN = {"gate": "log", "beta_form": "value", "state_layout": "KV", "qk": "normalised"}
FUSED = {"gate": "raw", "beta_form": "logit", "state_layout": "KV", "qk": "raw"}
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, str]]] = {
    "chunk": (CHUNK, given(2, 37), "kda_prefill", PLAIN),
    "chunk, packed, with states": (
        CHUNK,
        given(1, 40, cu_seqlens=OFFSETS, initial_state=state(3), output_final_state=True),
        "kda_prefill",
        PLAIN,
    ),
    "chunk, raw": (CHUNK, raw(2, 20, output_final_state=True), "kda_prefill", FUSED),
    "chunk, bounded, value dim first, beta to 2": (
        CHUNK,
        raw(
            1,
            40,
            cu_seqlens=OFFSETS,
            initial_state=state(3),
            output_final_state=True,
            lower_bound=LOWER_BOUND,
            safe_gate=True,
            state_v_first=True,
            allow_neg_eigval=True,
            chunk_size=32,
        ),
        "kda_prefill",
        {**FUSED, "gate": "bounded", "state_layout": "VK"},
    ),
    "chunk, bounded without parameters": (
        CHUNK,
        raw(2, 5, A_log=None, dt_bias=None, lower_bound=LOWER_BOUND),
        "kda_prefill",
        {**FUSED, "gate": "bounded"},
    ),
    "chunk, a raw gate and beta as it is": (
        CHUNK,
        raw(2, 5) | {"beta": gates(2, 5)[1], "use_beta_sigmoid_in_kernel": False},
        "kda_prefill",
        {**FUSED, "beta_form": "value"},
    ),
    "recurrent, one token": (
        RECURRENT,
        raw(3, 1, initial_state=state(3), output_final_state=True),
        "kda_decode",
        FUSED,
    ),
    "recurrent, one token, bounded": (
        RECURRENT,
        raw(
            3, 1, initial_state=state(3), output_final_state=True, lower_bound=LOWER_BOUND, state_v_first=True
        ),
        "kda_decode",
        {**FUSED, "gate": "bounded", "state_layout": "VK"},
    ),
    "recurrent, without a state": (RECURRENT, given(2, 1), "kda_prefill", PLAIN),
    "recurrent, more tokens": (
        RECURRENT,
        raw(2, 6, initial_state=state(2), output_final_state=True),
        "kda_prefill",
        FUSED,
    ),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("case", CASES)
def test_calls(case: str, tmp_path: Path) -> None:
    name, call, op, conventions = CASES[case]
    (o, final), record = recorded(
        tmp_path / "run.zarr", lambda: getattr(import_module("fla.ops.kda"), name)(**call)
    )
    info = record.info
    assert (info.op, {**info.conventions, "offsets": None}) == (op, {**conventions, "offsets": None})
    for one in ("q", "k", "v", "g", "beta"):
        assert torch.equal(record.before[one].read().flatten(), call[one].flatten()), one
        assert record.before[one].meta.caller_shape == tuple(call[one].shape)
    assert torch.equal(record.after["o"].read().flatten(), o.flatten())
    if final is not None:
        after = record.after["state" if op == "kda_decode" else "final_state"].read()
        assert torch.equal(after, final)
    assert info.scalars.get("lower_bound") == call.get("lower_bound")
    assert info.scalars["beta_max"] == (2.0 if call.get("allow_neg_eigval") else 1.0)
    if op == "kda_prefill":
        assert info.scalars["chunk_size"] == call.get("chunk_size", 64)
    if conventions["gate"] != "log" and call["A_log"] is not None:
        assert_parameters(record, call["A_log"], call["dt_bias"])
    else:
        assert not {"A_log", "dt_bias"} & set(record.before)
    assert_replays(tmp_path / "run.zarr")


def test_in_a_layer(tmp_path: Path) -> None:
    layer = import_module("fla.layers.kda").KimiDeltaAttention(5)
    call = raw(2, 1, initial_state=state(2), output_final_state=True, lower_bound=LOWER_BOUND)
    _, record = recorded(tmp_path / "run.zarr", lambda: layer(recurrent=True, **call))
    assert (record.info.layer_index, record.info.op) == (5, "kda_decode")


def test_states_on_the_way_are_named(tmp_path: Path) -> None:
    call = raw(1, 70, return_intermediate_states=True)
    _, record = recorded(tmp_path / "run.zarr", lambda: import_module("fla.ops.kda").chunk_kda(**call))
    assert record.info.dispatch["not_recorded"] == "intermediate states"


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "context parallelism": (CHUNK, {"cp_context": object()}, "context parallelism"),
    "beta of every channel": (RECURRENT, {"beta": random(1, 4, HV, D)}, "value channel"),
    "neither a rate nor a bound": (RECURRENT, {"A_log": None}, "without A_log"),
    "a parameter of tomorrow": (CHUNK, {"gate_base": 2}, "gate_base"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_calls_that_no_operation_describes(case: str, tmp_path: Path) -> None:
    name, more, said = REFUSED[case]
    call = raw(1, 4) | more
    with capturing(tmp_path / "run.zarr") as counts:
        if case == "beta of every channel":
            with pytest.raises(RuntimeError):  # the stand-in has no such rule
                getattr(import_module("fla.ops.kda"), name)(**call)
        else:
            getattr(import_module("fla.ops.kda"), name)(**call)
    ((reason, calls),) = counts.passed_over.items()
    assert (counts.records, counts.failures, calls) == (0, 0, 1)
    assert said in reason
