# SPDX-License-Identifier: Apache-2.0
"""The adapter of vLLM's Kimi Delta Attention, on stand-ins with its signatures, computed by definition."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import capturing
from gdnbench.capture.adapter import NotCaptured
from gdnbench.capture.adapters.serving_decode import refuse_step_sizes
from gdnbench.store.reader import StoredRecord
from tests.capture.frameworks import framework
from tests.capture.kda_calls import (
    HV,
    LOWER_BOUND,
    D,
    assert_parameters,
    assert_replays,
    gates,
    ints,
    parameters,
    pool,
    raw_gates,
    read,
    recorded,
    rows,
    states,
)

K3, GLM = "vllm.models.kimi_k3.nvidia", "vllm.models.glm5next"
K3_OPS, FLA = f"{K3}.ops.third_party.kda", "vllm.third_party.flash_linear_attention.ops.kda"
LAYER = "model.layers.1.self_attn"
LOGIT = {"beta_form": "logit", "state_layout": "VK", "qk": "raw"}


@pytest.fixture(autouse=True)
def vllm() -> Iterator[None]:
    with framework():
        yield


def step_of(**known: Any) -> SimpleNamespace:
    counts = {"num_prefills": 0, "num_decodes": 0, "num_spec_decodes": 0, "num_actual_tokens": 0}
    return SimpleNamespace(**{**counts, **known})


def called(
    path: Path, module: str, name: str, given: dict[str, Any], **step: Any
) -> tuple[Any, StoredRecord]:
    """In the `_forward` of a layer, in a step with these counts and tensors."""

    def run() -> Any:
        context = import_module("vllm.forward_context")
        kind = import_module(f"{K3}.kda").KimiK3DeltaAttention
        with context.set_forward_context({LAYER: step_of(**step)}):
            return kind(LAYER)._forward(getattr(import_module(module), name), **given)

    return recorded(path, run)


def gate_parameters(bias: str = "dt_bias") -> dict[str, Tensor]:
    A_log, dt_bias = parameters()
    return {"A_log": A_log.flatten(), bias: dt_bias}


def raw(tokens: int, **more: Any) -> dict[str, Any]:
    x, b = raw_gates(1, tokens)
    return {**rows(1, tokens), "raw_g": x, "raw_beta": b, **gate_parameters(), "lower_bound": None, **more}


def gathered() -> Tensor:
    """Initial states [3, Hv, V, K] that the caller gathered."""
    return pool()[[4, 1, 7]].contiguous()


OFFSETS = ints(0, 33, 34, 40)


def renamed(given: dict[str, Any], **names: str) -> dict[str, Any]:
    """The call with its own names for what `names` names."""
    own = {old: new for new, old in names.items()}
    return {own.get(name, name): value for name, value in given.items()}


def gated(**more: Any) -> dict[str, Any]:
    given = raw(40, cu_seqlens=OFFSETS, initial_state=gathered(), **more)
    given |= {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    return renamed(given, g_bias="dt_bias")


def step_sizes(given: dict[str, Any]) -> dict[str, Any]:
    """The same call with step sizes for logits."""
    return renamed({**given, "raw_beta": given["raw_beta"].float().sigmoid()}, beta="raw_beta")


def buffers(dtype: torch.dtype) -> dict[str, Any]:
    given = raw(40, cu_seqlens=OFFSETS, initial_state=gathered().to(dtype), lower_bound=LOWER_BOUND)
    return {**given, "out": torch.empty_like(given["v"])}


def flashkda() -> dict[str, Any]:
    given = renamed(buffers(torch.bfloat16), g="raw_g", beta="raw_beta")
    return {**given, "workspace": torch.empty(0), "final_state": torch.empty_like(given["initial_state"])}


def plain() -> dict[str, Any]:
    """As Ling-3.0 calls it: the gate is made, and its bound given all the same."""
    g, beta = gates(1, 40)
    given = {**rows(1, 40), "g": g, "beta": beta, "cu_seqlens": OFFSETS, "initial_state": gathered()}
    given |= {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    return {**given, "safe_gate": True, "lower_bound": LOWER_BOUND}


VALUE = {"beta_form": "value", "state_layout": "VK", "qk": "raw"}
PREFILLS: dict[str, tuple[str, str, dict[str, Any], dict[str, str], str]] = {
    "K3, raw": (K3_OPS, "chunk_kda_with_fused_gate", gated(), {"gate": "raw", **LOGIT}, "triton"),
    "K3, bounded": (
        f"{K3_OPS}.chunk",
        "chunk_kda_with_fused_gate",
        gated(lower_bound=LOWER_BOUND),
        {"gate": "bounded", **LOGIT},
        "triton",
    ),
    "K3, FlashKDA": (
        f"{K3}.kda",
        "_flashkda_prefill",
        flashkda(),
        {"gate": "bounded", **LOGIT},
        "flashkda",
    ),
    "K3, FlashInfer": (
        f"{K3}.kda",
        "_flashinfer_kda_prefill",
        buffers(torch.bfloat16),
        {"gate": "bounded", **LOGIT},
        "flashinfer",
    ),
    "GLM, bounded": (
        f"{GLM}.common.kda",
        "chunk_kda_with_fused_gate",
        step_sizes(gated(lower_bound=LOWER_BOUND, safe_gate=True)),
        {"gate": "bounded", **VALUE},
        "triton",
    ),
    "GLM, raw": (
        f"{GLM}.nvidia.ops.third_party.kda",
        "chunk_kda_with_fused_gate",
        step_sizes(gated(lower_bound=LOWER_BOUND, safe_gate=False)),
        {"gate": "raw", **VALUE},
        "triton",
    ),
    "Ling": (FLA, "chunk_kda", plain(), {"gate": "log", **VALUE}, "triton"),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("case", PREFILLS)
def test_prefill(case: str, tmp_path: Path) -> None:
    module, name, given, conventions, backend = PREFILLS[case]
    given = {one: x.clone() if isinstance(x, Tensor) else x for one, x in given.items()}
    before = given["initial_state"].clone()
    step = {"has_initial_state": torch.tensor([True, False, True]), "num_prefills": 3}
    step["non_spec_state_indices_tensor"] = ints(4, 1, 7)
    (o, final), record = called(tmp_path / "run.zarr", module, name, given, **step)
    info = record.info
    assert info.op == "kda_prefill"
    assert conventions.items() <= info.conventions.items()
    assert info.dispatch["backend"] == backend
    assert info.dispatch["metadata"]["state_indices"] == [4, 1, 7]
    assert info.scalars.get("lower_bound") == (LOWER_BOUND if conventions["gate"] == "bounded" else None)
    assert torch.equal(record.before["initial_state"].read(), before)
    stored = record.after["final_state"].read()
    assert stored.dtype == final.dtype
    assert torch.equal(stored, final)
    assert torch.equal(record.after["o"].read(), o[0])
    gate, beta = (given.get(f"raw_{one}", given.get(one)) for one in ("g", "beta"))
    assert torch.equal(record.before["g"].read(), gate[0])
    assert torch.equal(record.before["beta"].read(), beta[0])
    if conventions["gate"] != "log":
        assert_parameters(record, given["A_log"], given.get("g_bias", given.get("dt_bias")))
    assert_replays(tmp_path / "run.zarr")


def test_a_method_of_the_layer(tmp_path: Path) -> None:
    """GLM-5.3's way to FlashKDA takes the gate's parameters from the layer."""
    A_log, dt_bias = parameters()
    bound = {"A_log": A_log, "dt_bias": dt_bias, "kda_lower_bound": LOWER_BOUND}
    x, b = raw_gates(1, 40)
    given = {**rows(1, 40), "g": x, "beta": b, "initial_state": gathered(), "cu_seqlens": OFFSETS}

    def run() -> Any:
        layer = import_module(f"{GLM}.common.kda").Glm5NextLinearAttention(LAYER, **bound)
        with import_module("vllm.forward_context").set_forward_context({LAYER: step_of(num_prefills=3)}):
            return layer._forward(layer._flashkda_prefill, **given, out=None)

    _, record = recorded(tmp_path / "run.zarr", run)
    assert {"gate": "bounded", **LOGIT}.items() <= record.info.conventions.items()
    assert record.info.dispatch["backend"] == "flashkda"
    assert_parameters(record, A_log, dt_bias)
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.parametrize("bound", [None, LOWER_BOUND])
def test_packed_decode(bound: float | None, tmp_path: Path) -> None:
    """Slot 0 is null: the third request is padding."""
    given = raw(3, initial_state=pool(), state_indices=ints(4, 1, 0), lower_bound=bound)
    parts = [rows(1, 3, heads=HV)[name][0].flatten(1) for name in ("q", "k", "v")]
    for name in ("q", "k", "v"):
        given.pop(name)
    given["mixed_qkv"] = torch.cat(parts, 1)
    (o, _), record = called(tmp_path / "run.zarr", K3_OPS, "fused_recurrent_kda_packed_decode", given)
    assert record.info.op == "kda_decode"
    gate = "raw" if bound is None else "bounded"
    assert {"gate": gate, **LOGIT}.items() <= record.info.conventions.items()
    assert read(record, "state_indices") == [[[4], [1], [-1]]]
    for name, part in zip(("q", "k", "v"), parts, strict=True):
        assert torch.equal(record.before[name].read().flatten(1), part), name
        assert record.before[name].meta.caller_strides[-3] == given["mixed_qkv"].stride(0)
    assert torch.equal(record.after["o"].read()[:2, 0], o[0, :2])
    assert all(torch.equal(state, given["initial_state"][slot]) for slot, state in states(record).items())
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.parametrize("tokens", [4, 3])
def test_drafts(tokens: int, tmp_path: Path) -> None:
    """Two tokens of each request; of 3 tokens the second request has one, where there is room for two."""
    given = raw(
        tokens,
        cu_seqlens=ints(0, 2, tokens),
        initial_state=pool(),
        ssm_state_indices=ints([4, 1], [2, 3]),
        num_accepted_tokens=ints(2, 1),
        lower_bound=LOWER_BOUND,
    )
    masks = torch.tensor([True, True])
    step = {"num_spec_decodes": 2, "spec_sequence_masks_cpu": masks}
    (o, _), record = called(tmp_path / "run.zarr", K3_OPS, "fused_recurrent_kda", given, **step)
    if tokens == 4:
        assert read(record, "state_indices", "num_accepted") == [[[4, 1], [2, 3]], [2, 1]]
    else:
        assert read(record, "state_indices", "read_indices") == [[[4, 1], [2, -1]], [1, 2]]
    assert torch.equal(record.after["o"].read().flatten(0, 1)[:tokens], o[0])
    assert_replays(tmp_path / "run.zarr")


def glm_decode() -> dict[str, Any]:
    given = raw(2, cu_seqlens=ints(0, 1, 2), initial_state=pool(), ssm_state_indices=ints(4, 1))
    given |= {"lower_bound": LOWER_BOUND, "compute_gate": True, "sigmoid_beta": True}
    return renamed(given, a_log="A_log", g_bias="dt_bias", g="raw_g", beta="raw_beta")


def ling_decode(**more: Any) -> dict[str, Any]:
    g, beta = gates(1, 2)
    given = {**rows(1, 2), "g": g, "beta": beta, "cu_seqlens": ints(0, 1, 2), "initial_state": pool()}
    return {**given, "ssm_state_indices": ints(4, 1), **more}


DECODES: dict[str, tuple[str, str, dict[str, Any], dict[str, str]]] = {
    "GLM": (f"{GLM}.common.kda", "fused_recurrent_kda", glm_decode(), {"gate": "bounded", **LOGIT}),
    "Ling": (
        FLA,
        "fused_recurrent_kda",
        ling_decode(safe_gate=True, lower_bound=LOWER_BOUND),
        {"gate": "log", **VALUE},
    ),
    "Ling, drafts": (
        FLA,
        "fused_recurrent_kda_fwd",
        ling_decode(scale=0.25, num_accepted_tokens=ints(1, 1), use_qk_l2norm_in_kernel=True),
        {"gate": "log", **VALUE},
    ),
}


@pytest.mark.parametrize("case", DECODES)
def test_decode(case: str, tmp_path: Path) -> None:
    module, name, given, conventions = DECODES[case]
    given = {**given, "initial_state": pool()}
    _, record = called(tmp_path / "run.zarr", module, name, given, num_decodes=2)
    assert record.info.op == "kda_decode"
    assert conventions.items() <= record.info.conventions.items()
    assert record.info.scalars["scale"] == given.get("scale", D**-0.5)
    assert read(record, "state_indices") == [[[4], [1]]]
    assert all(torch.equal(state, given["initial_state"][slot]) for slot, state in states(record).items())
    assert_replays(tmp_path / "run.zarr")


def test_verification_from_a_checkpoint(tmp_path: Path) -> None:
    """RecoverSSM: the second request has one draft of two; accepted drafts are written later."""
    held = pool()
    before = held.clone()
    given = raw(5, checkpoint_state=held, query_start_loc=ints(0, 3, 5), state_indices=ints(4, 7))
    given |= {"records": None, "spec_query_len": 3, "lower_bound": LOWER_BOUND}
    step = {"num_spec_decodes": 2, "spec_sequence_masks_cpu": torch.tensor([True, True])}
    _, record = called(tmp_path / "run.zarr", f"{K3}.kda", "kda_recoverssm_verify", given, **step)
    assert torch.equal(held, before)
    assert read(record, "state_indices", "read_indices") == [[[-1] * 3] * 2, [4, 7]]
    assert_replays(tmp_path / "run.zarr")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no slots": ({"ssm_state_indices": None}, "pool"),
    "a parameter of tomorrow": ({"gate_base": 2}, "gate_base"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_calls_that_no_operation_describes(case: str, tmp_path: Path) -> None:
    more, said = REFUSED[case]
    given = {**glm_decode(), **more}
    if case == "no slots":
        given["num_accepted_tokens"] = None
    with capturing(tmp_path / "run.zarr") as counts:
        function = import_module(f"{GLM}.common.kda").fused_recurrent_kda
        if case == "no slots":
            with pytest.raises(TypeError):  # the stand-in has no states without slots
                function(**given)
        else:
            function(**given)
    ((reason, _),) = counts.passed_over.items()
    assert (counts.records, counts.failures) == (0, 0)
    assert said in reason


def test_only_step_sizes_of_a_head_are_recorded() -> None:
    v = torch.zeros(1, 3, 2, 16)
    refuse_step_sizes(torch.zeros(1, 3, 2), v)
    refuse_step_sizes(torch.zeros(3, 2), None)  # of a packed call, which has no v of its own
    for beta in (None, torch.zeros(1, 3, 2, 16)):
        with pytest.raises(NotCaptured, match="beta is left out, or of every value channel"):
            refuse_step_sizes(beta, v)
