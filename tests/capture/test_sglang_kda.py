# SPDX-License-Identifier: Apache-2.0
"""The adapter of SGLang's Kimi Delta Attention, on classes with its signatures, computed by definition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import capturing
from gdnbench.store.reader import Store, StoredRecord
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
    random,
    raw_gates,
    read,
    recorded,
    rows,
    states,
)
from tests.messages import wording

KERNELS = "sglang.srt.layers.attention.linear.kernels"
TRITON, FLASHINFER, PREFILL = "TritonKDAKernel", "FlashInferKDAKernel", "FlashInferKDAPrefillKernel"
FILES = {TRITON: "triton", FLASHINFER: "flashinfer", PREFILL: "flashinfer_prefill"}
LOGIT = {"beta_form": "logit", "state_layout": "VK", "qk": "raw"}


@pytest.fixture(autouse=True)
def sglang() -> Iterator[None]:
    with framework():
        yield


def called(path: Path, kernels: str, method: str, given: dict[str, Any]) -> tuple[Any, StoredRecord]:
    """In a layer, as SGLang's backend of attention calls its kernels."""

    def run() -> Any:
        layer = import_module("sglang.srt.layers.radix_linear_attention").RadixLinearAttention
        kernel = getattr(import_module(f"{KERNELS}.kda_{FILES[kernels]}"), kernels)()
        return layer(3, getattr(kernel, method))(**given)

    result, record = recorded(path, run)
    assert (record.info.layer_index, record.info.step) == (3, 0)
    assert record.info.dispatch["backend"] == FILES[kernels].partition("_")[0]
    return result, record


def gate_parameters() -> dict[str, Tensor]:
    A_log, dt_bias = parameters()
    return {"A_log": A_log, "dt_bias": dt_bias}


def extend(bounds: Tensor, slots: Tensor, padding: int = 0, **more: Any) -> dict[str, Any]:
    """`padding`: tokens of g and beta behind those of q."""
    tokens = int(bounds[-1])
    x, b = raw_gates(1, tokens + padding)
    return {
        **rows(1, tokens),
        "g": x,
        "beta": b,
        "beta_is_raw": True,
        "ssm_states": pool(),
        "cache_indices": slots,
        "query_start_loc": bounds,
        "layer_id": 3,
        "extend_seq_lens_cpu": bounds.diff().tolist(),
        "extend_prefix_lens": torch.zeros(len(slots), dtype=torch.int64),
        "is_spec_decode": False,
        "return_intermediate_states": False,
        "lower_bound": None,
        **gate_parameters(),
        **more,
    }


def decode(tokens: int, **more: Any) -> dict[str, Any]:
    """The gate has an axis for the batch and none for channels, as the backend gives it."""
    x, b = raw_gates(1, tokens)
    held = {"ssm_states": pool(), "lower_bound": None}
    return {**rows(1, tokens), "a": x.flatten(2), "b": b, **gate_parameters(), **held, **more}


@pytest.mark.parametrize(
    ("kernels", "bound"), [(TRITON, None), (TRITON, LOWER_BOUND), (PREFILL, LOWER_BOUND)]
)
def test_prefill(kernels: str, bound: float | None, tmp_path: Path) -> None:
    dtype = torch.float32 if bound is None else torch.bfloat16
    held = pool(dtype)
    before = held.clone()
    given = extend(ints(0, 33, 38, 40), ints(4, 0, 7), 2, ssm_states=held, lower_bound=bound)
    o, record = called(tmp_path / "run.zarr", kernels, "extend", given)
    info = record.info
    assert info.op == "kda_prefill"
    assert {"gate": "raw" if bound is None else "bounded", **LOGIT}.items() <= info.conventions.items()
    assert info.scalars.get("lower_bound") == bound
    metadata = {"state_indices": [4, 0, 7], "extend_prefix_lens": [0, 0, 0]}
    assert info.dispatch["metadata"] == metadata
    assert torch.equal(record.before["g"].read(), given["g"][0, :40])
    assert torch.equal(record.before["initial_state"].read(), before[[4, 0, 7]])
    final = record.after["final_state"].read()
    assert final.dtype == dtype
    assert torch.equal(final, held[[4, 0, 7]])
    assert torch.equal(record.after["o"].read(), o[0])
    assert_parameters(record, given["A_log"], given["dt_bias"])
    assert_replays(tmp_path / "run.zarr")


def test_prefill_with_gates_that_the_caller_made(tmp_path: Path) -> None:
    g, beta = gates(1, 12)
    given = extend(ints(0, 5, 12), ints(4, 2), g=g, beta=beta, beta_is_raw=False, A_log=None, dt_bias=None)
    _, record = called(tmp_path / "run.zarr", TRITON, "extend", given)
    wanted = {"gate": "log", "beta_form": "value"}
    assert wanted.items() <= record.info.conventions.items()
    assert_replays(tmp_path / "run.zarr")


def test_prefill_for_the_prefix_cache(tmp_path: Path) -> None:
    given = extend(ints(0, 70), ints(2), return_intermediate_states=True, track_state=torch.zeros(1))
    _, record = called(tmp_path / "run.zarr", TRITON, "extend", given)
    assert re.fullmatch(wording("capture.states-on-the-way"), record.info.dispatch["not_recorded"])


@pytest.mark.parametrize("bound", [None, LOWER_BOUND])
def test_packed_decode(bound: float | None, tmp_path: Path) -> None:
    """Slot 0 is a request's; the fourth request is padding."""
    given = decode(4, cache_indices=ints(4, 0, 7, -1), scale=D**-0.5, num_v_heads=HV, head_v_dim=D)
    parts = [given.pop(name)[0].flatten(1) for name in ("q", "k", "v")]
    given |= {"mixed_qkv": torch.cat(parts, 1), "a": given["a"][0].view(4, HV, D), "lower_bound": bound}
    o, record = called(tmp_path / "run.zarr", TRITON, "packed_decode", given)
    assert (record.info.op, record.info.dispatch["path"]) == ("kda_decode", "packed_decode")
    gate = "raw" if bound is None else "bounded"
    assert {"gate": gate, **LOGIT}.items() <= record.info.conventions.items()
    assert read(record, "state_indices") == [[[4], [0], [7], [-1]]]
    for name, part in zip(("q", "k", "v"), parts, strict=True):
        assert torch.equal(record.before[name].read().flatten(1), part), name
        assert record.before[name].meta.caller_strides[-3] == given["mixed_qkv"].stride(0)
    assert torch.equal(record.after["o"].read()[:3, 0], o[0, :3])
    assert all(torch.equal(state, given["ssm_states"][slot]) for slot, state in states(record).items())
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.parametrize("kernels", [TRITON, FLASHINFER])
def test_decode(kernels: str, tmp_path: Path) -> None:
    given = decode(3, cache_indices=ints(4, 0, 7), query_start_loc=ints(0, 1, 2, 3), lower_bound=LOWER_BOUND)
    o, record = called(tmp_path / "run.zarr", kernels, "decode", given)
    assert read(record, "state_indices") == [[[4], [0], [7]]]
    assert record.info.dispatch["metadata"] == {"query_start_loc": [0, 1, 2, 3]}
    assert torch.equal(record.before["g"].read().flatten(), given["a"].flatten())
    assert torch.equal(record.after["o"].read()[:, 0], o[0])
    assert_parameters(record, given["A_log"], given["dt_bias"])
    if kernels == TRITON:  # FlashInfer's rounds the step sizes to bfloat16
        assert_replays(tmp_path / "run.zarr")


def verification(**more: Any) -> dict[str, Any]:
    """Three drafts of each request, the third of which is padding."""
    return decode(
        9,
        cache_indices=ints(4, 0, -1),
        query_start_loc=ints(0, 3, 6, 9),
        intermediate_states_buffer=random(4, 3, HV, D, D),
        intermediate_state_indices=ints(0, 1, 2),
        cache_steps=3,
        retrieve_parent_token=None,
        **more,
    )


@pytest.mark.parametrize("kernels", [TRITON, FLASHINFER])
def test_verification(kernels: str, tmp_path: Path) -> None:
    given = verification()
    before = given["ssm_states"].clone()
    o, record = called(tmp_path / "run.zarr", kernels, "target_verify", given)
    assert torch.equal(given["ssm_states"], before)
    assert read(record, "state_indices", "read_indices") == [[[-1, -1, -1]] * 3, [4, 0, -1]]
    assert re.fullmatch(wording("capture.state-of-drafts"), record.info.dispatch["not_recorded"])
    assert torch.equal(record.after["o"].read()[:2].flatten(0, 1), o[0, :6])
    assert_replays(tmp_path / "run.zarr")


def test_verification_from_the_states_of_the_last_drafts(tmp_path: Path) -> None:
    """FlashInfer's goes on from the draft that was accepted last, and keeps the states of these ones."""
    slots = ints([3, 4, 5], [9, 10, 11], [-3, -2, -1])
    given = verification(fused_accept_state_indices=slots, fused_accept_num_accepted=ints(2, 1, 1))
    kept = given["intermediate_states_buffer"]
    _, record = called(tmp_path / "run.zarr", FLASHINFER, "target_verify", given)
    wanted = [[[3, 4, 5], [9, 10, 11], [-1, -1, -1]], [2, 1, 1]]
    assert read(record, "state_indices", "num_accepted") == wanted
    found = states(record)
    assert sorted(found) == [3, 4, 5, 9, 10, 11]
    assert all(torch.equal(state, kept.flatten(0, 1)[slot]) for slot, state in found.items())
    assert_replays(tmp_path / "run.zarr")


def below(path: Path, **more: Any) -> StoredRecord:
    """Triton's function, called by hand for two requests."""
    name = "sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent"
    given = decode(2, softplus_beta=1.0, softplus_threshold=20.0, use_qk_l2norm_in_kernel=True)
    given |= {"initial_state_source": given.pop("ssm_states"), "initial_state_indices": ints(4, 1)}
    given |= {"cu_seqlens": ints(0, 1, 2), "is_kda": True, **more}
    _, record = recorded(path, lambda: import_module(name).fused_sigmoid_gating_delta_rule_update(**given))
    return record


def test_a_function_that_something_else_calls(tmp_path: Path) -> None:
    record = below(tmp_path / "run.zarr", lower_bound=LOWER_BOUND)
    assert (record.info.op, record.info.conventions["gate"]) == ("kda_decode", "bounded")
    assert_replays(tmp_path / "run.zarr")


def test_step_sizes_that_the_caller_made(tmp_path: Path) -> None:
    """As where Triton's function follows FlashInfer's kernel step for step."""
    _, beta = gates(1, 2)
    record = below(tmp_path / "run.zarr", match_cutedsl_decode=True, b=beta)
    assert record.info.conventions["beta_form"] == "value"
    assert_replays(tmp_path / "run.zarr")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a tree of drafts": ({"retrieve_parent_token": ints(0)}, "tree"),
    "a parameter of tomorrow": ({"gate_base": 2}, "gate_base"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_calls_that_no_operation_describes(case: str, tmp_path: Path) -> None:
    more, said = REFUSED[case]
    kernel = getattr(import_module(f"{KERNELS}.kda_triton"), TRITON)()
    with capturing(tmp_path / "run.zarr") as counts:
        kernel.target_verify(**{**verification(), **more})
    ((reason, _),) = counts.passed_over.items()
    assert (counts.records, counts.failures) == (0, 0)
    assert said in reason


def test_padding_of_a_prefill_is_left_alone(tmp_path: Path) -> None:
    kernel = getattr(import_module(f"{KERNELS}.kda_triton"), TRITON)()
    with capturing(tmp_path / "run.zarr") as counts:
        kernel.extend(**extend(ints(0, 5, 12), ints(4, -1)))
    assert (counts.records, counts.failures, sum(counts.passed_over.values())) == (0, 0, 1)
    assert not (tmp_path / "run.zarr").exists() or not Store.open(tmp_path / "run.zarr").records
