# SPDX-License-Identifier: Apache-2.0
"""The adapter of SGLang's Gated DeltaNet, on classes with its signatures that compute the definition."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.capture.recorder import Counts
from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import Call
from tests.capture.frameworks import framework
from tests.messages import wording
from tests.subset import quick

H, HV, D, SLOTS = 2, 4, 8, 9
KERNELS = "sglang.srt.layers.attention.linear.kernels"
CLASSES = {"triton": "TritonGDNKernel", "flashinfer": "FlashInferGDNKernel", "cutedsl": "CuteDSLGDNKernel"}


@pytest.fixture(autouse=True)
def sglang() -> Iterator[None]:
    with framework():
        yield


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def pool(dtype: torch.dtype = torch.float32) -> Tensor:
    """[slots, Hv, V, K], its slots further apart than they are long: convolution states lie between them."""
    return random(SLOTS, HV * D * D + 24).to(dtype)[:, 24:].unflatten(1, (HV, D, D))


def rows(tokens: int) -> dict[str, Tensor]:
    return {
        "q": random(1, tokens, H, D, seed=1).bfloat16(),
        "k": random(1, tokens, H, D, seed=2).bfloat16(),
        "v": random(1, tokens, HV, D).bfloat16(),
    }


def raw(tokens: int, **more: Any) -> dict[str, Any]:
    """Of `decode` and `target_verify`."""
    return {
        **rows(tokens),
        "a": random(tokens, HV, seed=3).bfloat16(),
        "b": random(tokens, HV, seed=5).bfloat16(),
        "A_log": random(HV),
        "dt_bias": random(HV, seed=4).bfloat16(),
        "ssm_states": pool(),
        **more,
    }


def prefill(bounds: Tensor, slots: Tensor, **more: Any) -> dict[str, Any]:
    tokens = int(bounds[-1])
    return {
        **rows(tokens),
        "g": -random(1, tokens, HV, seed=3).abs(),
        "beta": random(1, tokens, HV, seed=5).sigmoid(),
        "ssm_states": pool(),
        "cache_indices": slots,
        "query_start_loc": bounds,
        "layer_id": 3,
        "extend_prefix_lens": torch.zeros(len(slots), dtype=torch.int64),
        **more,
    }


def kernel_of(backend: str) -> Any:
    return getattr(import_module(f"{KERNELS}.gdn_{backend}"), CLASSES[backend])()


def captured(path: Path, call: Callable[[], Any], **options: Any) -> tuple[Any, Counts]:
    with capturing(path, CaptureOptions(**options)) as counts:
        result = call()
    assert (counts.failures, counts.first_failure) == (0, None)
    return result, counts


def called(path: Path, backend: str, method: str, given: dict[str, Any]) -> tuple[Any, StoredRecord]:
    """In a layer, as SGLang's backend of attention calls its kernels."""

    def run() -> Any:
        layer = import_module("sglang.srt.layers.radix_linear_attention").RadixLinearAttention
        return layer(3, getattr(kernel_of(backend), method))(**given)

    result, counts = captured(path, run)
    assert counts.passed_over == {}
    (record,) = Store.open(path).records
    assert (record.info.layer_index, record.info.step) == (3, 0)
    assert record.info.dispatch["backend"] == backend
    return result, record


def assert_replays(path: Path) -> None:
    """The oracle gets what the function returned from what is recorded, within torch's bound."""
    for kernel in ("reference", "torch"):
        report = replay(Store.open(path), kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


def assert_valid(record: StoredRecord) -> None:
    before = {one: handle.read() for one, handle in record.before.items()}
    operation(record.info.op).validate(Call(before, record.info.scalars, record.info.conventions))


def read(record: StoredRecord, *names: str) -> list[Any]:
    return [record.before[name].read().tolist() for name in names]


def states(record: StoredRecord) -> dict[int, Tensor]:
    """By slot in the caller's pool, after the call."""
    return dict(zip(record.info.pools["state"].rows, record.after["state"].read(), strict=True))


@pytest.mark.parametrize(
    ("backend", "dtype"), quick(product(CLASSES, [torch.float32, torch.bfloat16]), 0, 3, 4)
)
def test_prefill(backend: str, dtype: torch.dtype, tmp_path: Path) -> None:
    held = pool(dtype)
    before = held.clone()
    given = prefill(ints(0, 70, 75, 80), ints(4, 0, 7), ssm_states=held)
    given["extend_prefix_lens"] = torch.tensor([0, 64, 12])
    (o, *_), record = called(tmp_path / "run.zarr", backend, "extend", given)
    info = record.info
    assert info.op == "gdn_prefill"
    assert info.dispatch["layer_id"] == 3  # also where the layer itself is not known
    assert info.conventions == {"gate": "log", "state_layout": "VK", "qk": "raw"}
    assert info.dispatch["metadata"] == {"state_indices": [4, 0, 7], "extend_prefix_lens": [0, 64, 12]}
    assert torch.equal(record.before["initial_state"].read(), before[[4, 0, 7]])
    assert torch.equal(record.after["o"].read(), o[0])
    final = record.after["final_state"].read()
    assert final.dtype == dtype
    assert torch.equal(final, held[[4, 0, 7]])
    assert not torch.equal(final, before[[4, 0, 7]])
    assert_valid(record)
    assert_replays(tmp_path / "run.zarr")


def test_prefill_that_leaves_the_pool(tmp_path: Path) -> None:
    """As where several items are scored after one prompt: sequences then share a slot."""
    given = prefill(ints(0, 5, 12), ints(4, 4), inplace_update=False)
    before = given["ssm_states"].clone()
    _, record = called(tmp_path / "run.zarr", "triton", "extend", given)
    assert torch.equal(given["ssm_states"], before)
    assert set(record.after) == {"o"}
    assert_replays(tmp_path / "run.zarr")


def test_prefill_for_the_prefix_cache(tmp_path: Path) -> None:
    given = prefill(ints(0, 70), ints(2), num_state_checkpoints=1, state_checkpoint_every_n_tokens=64)
    _, record = called(tmp_path / "run.zarr", "flashinfer", "extend", given)
    assert re.fullmatch(wording("capture.states-on-the-way"), record.info.dispatch["not_recorded"])
    assert_replays(tmp_path / "run.zarr")


def test_packed_decode(tmp_path: Path) -> None:
    """Slot 0 is a request's; the fourth request is padding."""
    given = raw(4, cache_indices=ints(4, 0, 7, -1), scale=D**-0.5, num_v_heads=HV, head_v_dim=D)
    before = given["ssm_states"].clone()
    parts = [given.pop(name)[0].flatten(1) for name in ("q", "k", "v")]
    o, record = called(
        tmp_path / "run.zarr", "triton", "packed_decode", {**given, "mixed_qkv": torch.cat(parts, 1)}
    )
    assert record.info.op == "gdn_decode"
    assert record.info.conventions == {"gate": "raw", "state_layout": "VK", "qk": "raw"}
    assert record.info.dispatch["path"] == "packed_decode"
    assert read(record, "state_indices") == [[[4], [0], [7], [-1]]]
    for name, part in zip(("q", "k", "v"), parts, strict=True):
        assert torch.equal(record.before[name].read().flatten(1), part), name
    assert torch.equal(record.after["o"].read()[:3, 0], o[0, :3])
    held = states(record)
    for slot in (0, 4, 7):
        assert torch.equal(held[slot], given["ssm_states"][slot])
        assert not torch.equal(held[slot], before[slot])
    assert record.before["state"].meta.caller_strides == given["ssm_states"].stride()
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.parametrize(("backend", "dtype"), quick(product(CLASSES, [torch.int32, torch.int64]), 0, 3, 4))
def test_decode(backend: str, dtype: torch.dtype, tmp_path: Path) -> None:
    slots = ints(4, 0, 7).to(dtype)
    given = raw(3, cache_indices=slots, query_start_loc=ints(0, 1, 2, 3))
    o, record = called(tmp_path / "run.zarr", backend, "decode", given)
    assert read(record, "state_indices") == [[[4], [0], [7]]]
    assert record.info.dispatch["metadata"] == {"query_start_loc": [0, 1, 2, 3]}
    assert torch.equal(record.after["o"].read()[:, 0], o[0])
    held = states(record)
    assert all(torch.equal(held[slot], given["ssm_states"][slot]) for slot in (0, 4, 7))
    assert_replays(tmp_path / "run.zarr")


def test_decode_that_writes_the_last_slot_for_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FlashInfer's backend does on Hopper: states are gathered by the slots, and put back."""
    triton, flashinfer = kernel_of("triton"), kernel_of("flashinfer")

    def decode(self: Any, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, **given: Any) -> Tensor:
        held, slots = given["ssm_states"], given["cache_indices"].long()
        states = held[slots]
        given |= {"ssm_states": states, "cache_indices": torch.arange(len(slots))}
        o: Tensor = inspect.unwrap(type(triton).decode)(triton, q, k, v, a, b, **given)
        held[slots] = states
        return o

    decode.__signature__ = inspect.signature(type(flashinfer).decode)  # type: ignore[attr-defined]
    monkeypatch.setattr(type(flashinfer), "decode", decode)
    given = raw(3, cache_indices=ints(4, 0, -1), query_start_loc=ints(0, 1, 2, 3))
    _, record = called(tmp_path / "run.zarr", "flashinfer", "decode", given)
    assert sorted(states(record)) == [0, 4]
    stored = Store.open(tmp_path / "run.zarr")
    assert replay(stored, kernel="torch", against="reference", isolate=False).exit_code is Exit.PASS
    (found,) = replay(stored, kernel="torch", against="recorded", isolate=False).records
    assert re.search(wording("replay.recorded-slots-changed", tensor="state"), found.reason)


@pytest.mark.parametrize("backend", ["triton", "flashinfer"])
def test_verification(backend: str, tmp_path: Path) -> None:
    """Three drafts of each request, the third of which is padding; the pool stays as it was."""
    given = raw(
        9,
        cache_indices=ints(4, 0, -1, -1),
        query_start_loc=ints(0, 3, 6, 9),
        intermediate_states_buffer=torch.zeros(3, 3, HV, D, D),
        intermediate_state_indices=ints(0, 1, 2),
        cache_steps=3,
        retrieve_parent_token=None,
        stable_rows=False,
    )
    if backend == "flashinfer":
        given["cache_indices"] = given["cache_indices"][:3]
    before = given["ssm_states"].clone()
    o, record = called(tmp_path / "run.zarr", backend, "target_verify", given)
    assert torch.equal(given["ssm_states"], before)
    nothing = [[-1, -1, -1]] * 3
    assert read(record, "state_indices", "read_indices") == [nothing, [4, 0, -1]]
    assert re.fullmatch(wording("capture.state-of-drafts"), record.info.dispatch["not_recorded"])
    assert torch.equal(record.after["o"].read()[:2].flatten(0, 1), o[0, :6])
    assert_replays(tmp_path / "run.zarr")


def captured_below(path: Path, **more: Any) -> Counts:
    """Of Triton's function, called by hand for two drafts of two requests."""
    name = "sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent"
    given = raw(4, softplus_beta=1.0, softplus_threshold=20.0, use_qk_l2norm_in_kernel=True)
    given |= {"initial_state_source": given.pop("ssm_states"), "initial_state_indices": ints(4, 1)}
    given |= {"cu_seqlens": ints(0, 2, 4), "disable_state_update": True, **more}

    def run() -> Any:
        return import_module(name).fused_sigmoid_gating_delta_rule_update(**given)

    return captured(path, run)[1]


def test_a_function_that_something_else_calls(tmp_path: Path) -> None:
    """As where a verification keeps the inputs of its drafts instead of states."""
    counts = captured_below(tmp_path / "run.zarr", cache_ring=True)
    assert (counts.records, counts.passed_over) == (1, {})
    (record,) = Store.open(tmp_path / "run.zarr").records
    assert read(record, "read_indices") == [[4, 1]]
    assert_replays(tmp_path / "run.zarr")


def ring_call(**more: Any) -> dict[str, Any]:
    """Of CuTe DSL's kernel for three drafts of two requests, the second of which is padding."""
    given = raw(6, disable_state_update=True, cache_ring=True, replayssm_rawv=torch.zeros(SLOTS, HV, 4, D))
    for name in ("q", "k", "v", "a", "b"):
        given[name] = given[name].reshape(2, 3, *given[name].shape[-2 if name in "qkv" else -1 :])
    given["initial_state_source"] = given.pop("ssm_states").bfloat16()
    return {**given, "initial_state_indices": ints(4, -1), **more}


def captured_ring(path: Path, **more: Any) -> tuple[Any, Counts]:
    module = "sglang.kernels.ops.attention.cutedsl_gdn_mtp_ring"
    return captured(path, lambda: import_module(module).gated_delta_rule_mtp(**ring_call(**more)))


def test_verification_that_keeps_a_ring(tmp_path: Path) -> None:
    """SGLang folds the accepted prefix of the ring into the states after each step."""
    o, counts = captured_ring(tmp_path / "run.zarr")
    assert (counts.records, counts.passed_over) == (1, {})
    (record,) = Store.open(tmp_path / "run.zarr").records
    assert (record.info.dispatch["path"], record.info.dispatch["backend"]) == (
        "gated_delta_rule_mtp",
        "cutedsl",
    )
    assert re.fullmatch(wording("capture.state-of-drafts"), record.info.dispatch["not_recorded"])
    assert read(record, "state_indices", "read_indices") == [[[-1, -1, -1]] * 2, [4, -1]]
    assert torch.equal(record.after["o"].read()[0], o[0])
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.parametrize(
    "more", [{"disable_state_update": False}, {"accepted_steps": ints(1, 1)}, {"recovery_steps": 1}]
)
def test_a_ring_that_updates_states_is_left_alone(more: dict[str, Any], tmp_path: Path) -> None:
    _, counts = captured_ring(tmp_path / "run.zarr", **more)
    assert counts.records == 0
    ((found, _),) = counts.passed_over.items()
    assert re.fullmatch(wording("capture.ring-updates"), found)


def test_a_gate_with_a_lower_bound_is_left_alone(tmp_path: Path) -> None:
    """The kernel takes lower_bound * sigmoid(exp(A_log) (a + dt_bias)) then, which no convention here has."""
    counts = captured_below(tmp_path / "run.zarr", lower_bound=-5.0)
    assert counts.records == 0
    ((found, calls),) = counts.passed_over.items()
    assert "lower_bound" in found
    assert calls == 1


def verified(**more: Any) -> dict[str, Any]:
    return raw(
        4,
        **{
            "cache_indices": ints(4, 1),
            "query_start_loc": ints(0, 2, 4),
            "intermediate_states_buffer": None,
            "intermediate_state_indices": None,
            "cache_steps": 2,
            "retrieve_parent_token": None,
            **more,
        },
    )


LEFT_ALONE: dict[str, tuple[str, Callable[[], dict[str, Any]], str]] = {
    "padding": ("extend", lambda: prefill(ints(0, 5, 5), ints(4, -1)), wording("capture.prefill-padding")),
    "rows of no sequence": (
        "extend",
        lambda: prefill(ints(0, 5, 8), ints(4, 1)) | {"query_start_loc": ints(0, 2, 5)},
        wording("capture.tokens-of-no-sequence"),
    ),
    "no tokens": (
        "decode",
        lambda: raw(0, cache_indices=ints(), query_start_loc=ints(0)),
        wording("capture.no-tokens"),
    ),
    "no requests": (
        "target_verify",
        lambda: raw(0) | verified(cache_indices=ints(), query_start_loc=ints(0)) | rows(0),
        wording("capture.no-tokens"),
    ),
    "tree": (
        "target_verify",
        lambda: verified(retrieve_parent_token=ints([0, 0], [0, 0])),
        wording("capture.drafts-tree"),
    ),
    "ragged": (
        "target_verify",
        lambda: verified(query_start_loc=ints(0, 1, 4)),
        wording("capture.more-tokens"),
    ),
    "all padding": (
        "target_verify",
        lambda: verified(cache_indices=ints(-1, -1)),
        wording("capture.all-padding"),
    ),
    "fp8": (
        "decode",
        lambda: (
            raw(1, cache_indices=ints(4), query_start_loc=ints(0, 1))
            | {"ssm_states": pool().to(torch.float8_e4m3fn)}
        ),
        wording("capture.states-dtype", dtype="float8_e4m3fn"),
    ),
    "new": (
        "extend",
        lambda: prefill(ints(0, 5), ints(4), decay="other"),
        wording("capture.parameter-unknown", function="TritonGDNKernel.extend", parameter="decay"),
    ),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("case", LEFT_ALONE)
def test_calls_that_no_operation_describes(case: str, tmp_path: Path) -> None:
    method, make, reason = LEFT_ALONE[case]
    given = make()
    _, counts = captured(tmp_path / "run.zarr", lambda: getattr(kernel_of("triton"), method)(**given))
    assert counts.records == 0
    ((found, calls),) = counts.passed_over.items()
    assert re.search(reason, found)
    assert calls == 1


def test_decode_from_a_ring_is_left_alone(tmp_path: Path) -> None:
    given = raw(1, cache_indices=ints(4), scale=None, num_v_heads=HV, head_v_dim=D)
    parts = [given.pop(name)[0].flatten(1) for name in ("q", "k", "v")]
    given |= {"mixed_qkv": torch.cat(parts, 1), "replayssm_write_pos": ints(0)}
    given |= {f"replayssm_{name}": torch.zeros(1) for name in ("d", "k", "g")}
    _, counts = captured(tmp_path / "run.zarr", lambda: kernel_of("triton").packed_decode(**given))
    ((found, _),) = counts.passed_over.items()
    assert re.fullmatch(wording("capture.inputs-for-replay"), found)
