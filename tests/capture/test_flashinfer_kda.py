# SPDX-License-Identifier: Apache-2.0
"""The adapter of FlashInfer's Kimi Delta Attention, on functions with its signatures that compute the
definition."""

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
    SLOTS,
    D,
    assert_parameters,
    assert_replays,
    gates,
    ints,
    parameters,
    pool,
    random,
    raw_gates,
    read,
    recorded,
    rows,
    states,
)


@pytest.fixture(autouse=True)
def flashinfer() -> Iterator[None]:
    with framework():
        yield


def bfloat16(*tensors: Tensor) -> list[Tensor]:
    return [one.bfloat16() for one in tensors]


def plain(*leading: int, **more: Any) -> dict[str, Any]:
    """Log gates and step sizes, as the function takes them by default: in bfloat16."""
    g, beta = bfloat16(*gates(*leading))
    return {**rows(*leading), "g": g, "beta": beta, **more}


def raw(*leading: int, **more: Any) -> dict[str, Any]:
    x, b = raw_gates(*leading)
    A_log, dt_bias = (one.flatten() for one in parameters())
    return {
        **rows(*leading),
        "g": x,
        "beta": b,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "use_gate_in_kernel": True,
        "beta_is_logit": True,
        **more,
    }


def called(path: Path, function: str = "recurrent_kda", module: str = "flashinfer", **given: Any) -> Any:
    return recorded(path, lambda: getattr(import_module(module), function)(**given))


def test_prefill_over_a_pool(tmp_path: Path) -> None:
    """The states are updated in place, though the caller does not ask for them."""
    held = pool(torch.bfloat16)
    before = held.clone()
    call = raw(
        1, 43, cu_seqlens=ints(0, 20, 21, 43), ssm_state_indices=ints(4, 0, 7), lower_bound=LOWER_BOUND
    )
    (o, final), record = called(tmp_path / "run.zarr", **call, initial_state=held)
    info = record.info
    assert (info.op, final) == ("kda_prefill", None)
    wanted = {"gate": "bounded", "beta_form": "logit", "state_layout": "VK", "qk": "raw"}
    assert wanted.items() <= info.conventions.items()
    assert (info.scalars["lower_bound"], info.scalars["final_state_dtype"]) == (LOWER_BOUND, "bfloat16")
    assert torch.equal(record.before["initial_state"].read(), before[[4, 0, 7]])
    assert torch.equal(record.after["final_state"].read(), held[[4, 0, 7]])
    assert torch.equal(record.after["o"].read(), o[0])
    assert_parameters(record, call["A_log"], call["dt_bias"])
    assert_replays(tmp_path / "run.zarr")


def test_prefill_without_states(tmp_path: Path) -> None:
    call = plain(2, 19, output_final_state=True, backend="cute-dsl")
    (_, final), record = called(tmp_path / "run.zarr", **call)
    assert (record.info.op, record.info.dispatch["backend"]) == ("kda_prefill", "cute-dsl")
    wanted = {"gate": "log", "beta_form": "value", "state_layout": "VK", "qk": "raw"}
    assert wanted.items() <= record.info.conventions.items()
    assert torch.equal(record.after["final_state"].read(), final)
    assert_replays(tmp_path / "run.zarr")


def test_checkpoints_are_named(tmp_path: Path) -> None:
    more = {"checkpoint_every_n_tokens": 32, "initial_state": pool()[:1].contiguous()}
    _, record = called(tmp_path / "run.zarr", **raw(1, 40, **more))
    assert record.info.dispatch["not_recorded"] == "state_checkpoints"


@pytest.mark.parametrize("module", ["flashinfer", "flashinfer.kda_decode"])
def test_decode(module: str, tmp_path: Path) -> None:
    """The third sequence is padding."""
    held = pool(torch.bfloat16)
    call = raw(1, 3, cu_seqlens=ints(0, 1, 2, 3), ssm_state_indices=ints(4, 0, -1))
    (o, _), record = called(tmp_path / "run.zarr", module=module, **call, initial_state=held)
    assert record.info.op == "kda_decode"
    assert record.info.conventions["gate"] == "raw"
    assert read(record, "state_indices") == [[[4], [0], [-1]]]
    assert torch.equal(record.after["o"].read()[:2, 0], o[0, :2])
    assert all(torch.equal(state, held[slot]) for slot, state in states(record).items())
    assert record.before["state"].meta.caller_strides == held.stride()
    assert_replays(tmp_path / "run.zarr")


def test_decode_of_a_batch_with_states_of_its_own(tmp_path: Path) -> None:
    held = pool()[:3].contiguous()
    _, record = called(tmp_path / "run.zarr", **plain(3, 1), initial_state=held)
    assert (record.info.op, read(record, "state_indices")) == ("kda_decode", [[[0], [1], [2]]])
    assert torch.equal(record.after["state"].read(), held)
    assert_replays(tmp_path / "run.zarr")


def test_drafts(tmp_path: Path) -> None:
    """Of two requests, which go on from the second and the first of their last drafts."""
    slots = ints([4, 1, 7], [2, 3, 8])
    more = {"num_spec_tokens": 2, "num_accepted_tokens": ints(2, 1), "lower_bound": LOWER_BOUND}
    call = raw(1, 6, cu_seqlens=ints(0, 3, 6), ssm_state_indices=slots, **more)
    _, record = called(tmp_path / "run.zarr", **call, initial_state=pool(torch.bfloat16))
    assert read(record, "state_indices", "num_accepted") == [slots.tolist(), [2, 1]]
    assert sorted(states(record)) == [1, 2, 3, 4, 7, 8]
    assert_replays(tmp_path / "run.zarr")


def test_drafts_of_a_batch(tmp_path: Path) -> None:
    """Without slots: those of sequence n are n S up to (n + 1) S."""
    call = raw(2, 3, num_spec_tokens=2)
    _, record = called(tmp_path / "run.zarr", **call, initial_state=pool()[:6].contiguous())
    assert read(record, "state_indices") == [[[0, 1, 2], [3, 4, 5]]]
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.parametrize("packed", [False, True])
def test_verification(packed: bool, tmp_path: Path) -> None:
    """Packed, the second request has two drafts less than there is room for."""
    source = pool(torch.bfloat16)
    before = source.clone()
    more = {"disable_state_update": True, "initial_state_source": source, "initial_state_indices": ints(4, 7)}
    if packed:
        cache = torch.zeros(SLOTS, HV, 3, D)
        more |= {"cu_seqlens": ints(0, 3, 4), "correction_cache": cache, "kg_cache": cache}
    _, record = called(tmp_path / "run.zarr", **raw(*((1, 4) if packed else (2, 3)), **more))
    assert torch.equal(source, before)
    assert read(record, "state_indices", "read_indices") == [[[-1] * 3] * 2, [4, 7]]
    left_out = record.info.dispatch.get("not_recorded")
    assert left_out == ("correction_cache, kg_cache" if packed else None)
    assert_replays(tmp_path / "run.zarr")


def packed_call() -> dict[str, Any]:
    heads = HV  # of q and k too
    parts = [part.flatten(1) for part in rows(4, heads=heads).values()]
    x, b = raw_gates(4)
    A_log, dt_bias = (one.flatten() for one in parameters())
    return {
        "mixed_qkv": torch.cat(parts, 1),
        "raw_gate": x.flatten(1),
        "raw_beta": b,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "state": pool(torch.bfloat16),
        "state_indices": ints(4, 0, 7, -1),
    }


def test_packed_decode(tmp_path: Path) -> None:
    """q, k and v lie in one tensor; the gate's bound is the function's own."""
    call = packed_call()
    o, record = called(tmp_path / "run.zarr", "packed_kda_decode", **call)
    wanted = {"gate": "bounded", "beta_form": "logit", "state_layout": "VK", "qk": "raw"}
    assert wanted.items() <= record.info.conventions.items()
    assert record.info.scalars["lower_bound"] == LOWER_BOUND
    mixed = call["mixed_qkv"]
    for index, name in enumerate(("q", "k", "v")):
        part = mixed[:, index * HV * D : (index + 1) * HV * D]
        assert torch.equal(record.before[name].read().flatten(1), part), name
        assert record.before[name].meta.caller_strides[-3:] == (mixed.stride(0), D, 1)
    assert read(record, "state_indices") == [[[4], [0], [7], [-1]]]
    assert torch.equal(record.after["o"].read()[:3], o[:3])
    assert_replays(tmp_path / "run.zarr")


def test_the_fused_layer_is_named(tmp_path: Path) -> None:
    """It convolves before and normalises after, so that nothing that kda_decode takes is in memory."""
    given = {"x": random(2, 3 * HV * D), "state": pool(), "lower_bound": LOWER_BOUND}
    names = ("weight", "conv_state", "raw_gate", "raw_beta", "A_log", "dt_bias", "state_indices")
    given |= dict.fromkeys((*names, "output_gate", "norm_weight"))
    with capturing(tmp_path / "run.zarr") as counts:
        import_module("flashinfer").fused_kda_decode(**given)
    assert (counts.records, counts.failures) == (0, 0)
    ((name, found),) = counts.uncaptured.items()
    assert name.endswith("kda_decode.fused_kda_decode")
    assert found


REFUSED = {
    "other states to read": ({"initial_state_source": pool()}, "another pool"),
    "no states": ({"initial_state": None}, "without states"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_calls_that_no_operation_describes(case: str, tmp_path: Path) -> None:
    more, said = REFUSED[case]
    if "initial_state_source" in more:
        more = {**more, "initial_state_indices": ints(1, 0)}
    call = {**raw(2, 1), "initial_state": pool()[:2].contiguous(), **more}
    with capturing(tmp_path / "run.zarr") as counts:
        import_module("flashinfer").recurrent_kda(**call)
    ((reason, _),) = counts.passed_over.items()
    assert (counts.records, counts.failures) == (0, 0)
    assert said in reason
