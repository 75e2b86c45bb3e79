# SPDX-License-Identifier: Apache-2.0
"""The adapter of vLLM's Gated DeltaNet, on functions with its signatures that compute the definition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing, runtime
from gdnbench.capture.adapter import Target
from gdnbench.capture.adapters.vllm import VllmAdapter
from gdnbench.capture.recorder import Counts
from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import Call
from tests.capture.frameworks import framework
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of
from tests.messages import wording
from tests.subset import quick

H, HV, D, SLOTS = 2, 4, 8, 9
OPS = "vllm.third_party.flash_linear_attention.ops"
QWEN = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
LAYER = "model.layers.1.linear_attn"


@pytest.fixture(autouse=True)
def vllm() -> Iterator[None]:
    with framework():
        yield


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def pool(dtype: torch.dtype = torch.float32) -> Tensor:
    """[slots, Hv, V, K], its slots further apart than they are long: convolution states lie between them."""
    return random(SLOTS, HV * D * D + 24).to(dtype)[:, 24:].unflatten(1, (HV, D, D))


def packed(tokens: int) -> dict[str, Tensor]:
    return {
        "mixed_qkv": random(tokens, 2 * H * D + HV * D).bfloat16(),
        "a": random(tokens, HV, seed=3).bfloat16(),
        "b": random(tokens, HV, seed=5).bfloat16(),
    }


def gate_parameters() -> dict[str, Tensor]:
    return {"A_log": random(HV), "dt_bias": random(HV, seed=4).bfloat16()}


def drafted(tokens: int, **more: Any) -> dict[str, Any]:
    """Of `fused_sigmoid_gating_delta_rule_update`."""
    rows = packed(tokens)
    return {
        "a": rows["a"],
        "b": rows["b"],
        "q": random(1, tokens, H, D, seed=1).bfloat16(),
        "k": random(1, tokens, H, D, seed=2).bfloat16(),
        "v": random(1, tokens, HV, D).bfloat16(),
        **gate_parameters(),
        "initial_state": pool(),
        "use_qk_l2norm_in_kernel": True,
        **more,
    }


def captured(path: Path, call: Callable[[], Any]) -> tuple[Any, Counts, StoredRecord | None]:
    with capturing(path) as counts:
        result = call()
    if not counts.records:
        return result, counts, None
    (record,) = Store.open(path).records
    return result, counts, record


def called(path: Path, name: str, given: dict[str, Any]) -> tuple[Any, StoredRecord]:
    result, counts, record = captured(path, lambda: getattr(import_module(OPS), name)(**given))
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    assert record is not None
    return result, record


def assert_replays(path: Path, against: str = "recorded") -> None:
    """The oracle gets what the function returned from what is recorded, within torch's bound."""
    for kernel in ("reference", "torch"):
        report = replay(Store.open(path), kernel=kernel, against=against, isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


def assert_valid(record: StoredRecord) -> None:
    before = {one: handle.read() for one, handle in record.before.items() if one not in record.info.pools}
    for name, held in record.info.pools.items():
        rows = record.before[name].read()
        before[name] = torch.zeros(held.slots, *rows.shape[1:], dtype=rows.dtype)
    operation(record.info.op).validate(Call(before, record.info.scalars, record.info.conventions))


def read(record: StoredRecord, *names: str) -> list[Any]:
    return [record.before[name].read().tolist() for name in names]


def states(record: StoredRecord) -> dict[int, Tensor]:
    """By slot in the caller's pool, after the call."""
    return dict(zip(record.info.pools["state"].rows, record.after["state"].read(), strict=True))


def layer(backend: str = "triton", dtype: torch.dtype = torch.float32) -> Any:
    kind = import_module(QWEN).QwenGatedDeltaNetAttention
    return kind(1, pool(dtype), random(HV), random(HV, seed=4).bfloat16(), backend)


def run(module: Any, tokens: int, **metadata: Any) -> Tensor:
    """A step of the layer, as its custom op runs it; without metadata, as vLLM has kernels compiled."""
    counts = dict.fromkeys(
        ("num_prefills", "num_prefill_tokens", "num_decodes", "num_decode_tokens", "num_spec_decodes"), 0
    )
    step = {LAYER: SimpleNamespace(**{**counts, "num_actual_tokens": tokens, **metadata})}
    rows, out = packed(tokens), torch.zeros(tokens, HV, D, dtype=torch.bfloat16)
    running = import_module("vllm.forward_context").set_forward_context
    with running(step) if metadata else nullcontext():
        module._forward_core(rows["mixed_qkv"], rows["b"], rows["a"], out)
    return out


class Ran(NamedTuple):
    module: Any
    before: Tensor  # the pool
    out: Tensor
    record: StoredRecord


def step(path: Path, made: Callable[[], Any], tokens: int, **metadata: Any) -> Ran:
    """A layer that is built while its calls are captured, as a server's are, and runs one step."""
    with capturing(path) as counts:
        module = made()
        before = module.pool.clone()
        out = run(module, tokens, **metadata)
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    (record,) = Store.open(path).records
    return Ran(module, before, out, record)


PREFILL = {
    "num_prefills": 3,
    "num_prefill_tokens": 80,
    "prefill_query_start_loc": ints(0, 70, 75, 80),
    "prefill_state_indices": ints(4, 1, 7),
    "prefill_has_initial_state": torch.tensor([False, True, True]),
    "chunk_indices": ints([0, 0], [0, 1], [1, 0], [2, 0]),
    "chunk_offsets": ints(0, 2, 3, 4),
}


@pytest.mark.parametrize(
    ("backend", "dtype"),
    quick(
        product(["flashinfer", "triton", "cutedsl", "aiter_flydsl"], [torch.float32, torch.bfloat16]), 0, 5
    ),
)
def test_prefill_of_a_layer(backend: str, dtype: torch.dtype, tmp_path: Path) -> None:
    made = step(tmp_path / "run.zarr", lambda: layer(backend, dtype), 80, **PREFILL)
    module, before, out, record = made
    info = record.info
    assert (info.op, info.layer_index, info.step) == ("gdn_prefill", 1, 0)
    assert info.conventions == {"gate": "log", "state_layout": "VK", "qk": "raw"}
    assert info.dispatch["backend"] == backend
    assert info.dispatch["metadata"] == {
        "num_prefills": 3,
        "num_prefill_tokens": 80,
        "num_decodes": 0,
        "num_decode_tokens": 0,
        "num_spec_decodes": 0,
        "num_actual_tokens": 80,
        "has_initial_state": [False, True, True],
        "state_indices": [4, 1, 7],
    }
    for name in ("chunk_indices", "chunk_offsets"):
        assert torch.equal(record.before[name].read(), PREFILL[name])
    initial = record.before["initial_state"].read()
    assert torch.equal(initial[1:], before[[1, 7]])
    assert not initial[0].any()
    assert torch.equal(record.after["o"].read(), out)
    final = record.after["final_state"].read()
    assert final.dtype == (torch.float32 if backend in ("flashinfer", "triton") else dtype)
    assert torch.equal(final.to(dtype), module.pool[[4, 1, 7]])
    assert_valid(record)
    assert_replays(tmp_path / "run.zarr")


def test_prefill_with_tokens_of_no_sequence(tmp_path: Path) -> None:
    """No record, which no kernel could be given."""
    metadata = {**PREFILL, "num_prefill_tokens": 84}
    _, counts, _ = captured(tmp_path / "run.zarr", lambda: run(layer(), 84, **metadata))
    assert (counts.records, counts.failures, counts.first_failure) == (0, 0, None)
    ((reason, calls),) = counts.passed_over.items()
    assert re.fullmatch(wording("capture.tokens-of-no-sequence"), reason)
    assert calls == 1


def test_prefill_that_leaves_checkpoints(tmp_path: Path) -> None:
    """vLLM then calls FlashInfer's wrapper itself; the states on the way are no output of the operation."""
    rows = drafted(80)
    given = {name: rows[name] for name in ("q", "k", "v")}
    given |= {"g": -random(1, 80, HV).abs(), "beta": random(1, 80, HV).sigmoid(), "output_final_state": True}
    given |= {
        "initial_state": random(1, HV, D, D),
        "cu_seqlens": ints(0, 80),
        "checkpoint_every_n_tokens": 64,
    }
    module = import_module(QWEN)
    _, counts, record = captured(tmp_path / "run.zarr", lambda: module.fi_chunk_gated_delta_rule(**given))
    assert (counts.records, counts.failures, counts.first_failure) == (1, 0, None)
    assert record is not None
    assert record.info.dispatch["backend"] == "flashinfer"
    assert record.info.dispatch["not_recorded"] == "state_checkpoints"
    assert_replays(tmp_path / "run.zarr")


def test_packed_decode_of_a_layer(tmp_path: Path) -> None:
    """Two of five requests are padding; padding has slot 0 here and -1 in the operation."""
    metadata = {"num_decodes": 5, "non_spec_state_indices_tensor": ints(4, 0, 7, 2, 0)}
    module, before, out, record = step(tmp_path / "run.zarr", layer, 5, **metadata)
    assert record.info.op == "gdn_decode"
    assert record.info.conventions == {"gate": "raw", "state_layout": "VK", "qk": "raw"}
    assert record.info.dispatch["path"] == "fused_recurrent_gated_delta_rule_packed_decode"
    assert record.info.dispatch["metadata"]["num_decodes"] == 5
    assert read(record, "state_indices") == [[[4], [-1], [7], [2], [-1]]]
    rows = packed(5)["mixed_qkv"]
    for name, part in (
        ("q", rows[:, : H * D]),
        ("k", rows[:, H * D : 2 * H * D]),
        ("v", rows[:, 2 * H * D :]),
    ):
        assert torch.equal(record.before[name].read().flatten(1), part), name
    assert torch.equal(record.after["o"].read()[:, 0], out)
    held = states(record)
    for slot in (2, 4, 7):
        assert torch.equal(held[slot], module.pool[slot])
        assert not torch.equal(held[slot], before[slot])
    assert record.before["state"].meta.caller_strides == module.pool.stride()
    assert_replays(tmp_path / "run.zarr")


SIGMOID = "fused_sigmoid_gating_delta_rule_update"


def test_decode_of_packed_tokens(tmp_path: Path) -> None:
    """A request of no tokens, and slots past the last request: vLLM cuts the offsets alone."""
    given = drafted(3, cu_seqlens=ints(0, 1, 2, 3, 3), ssm_state_indices=ints(4, 0, 7, 3, 5, 6))
    given = {name: rows_of_four(name, tensor) for name, tensor in given.items()}
    (o, _), record = called(tmp_path / "run.zarr", SIGMOID, given)
    assert read(record, "state_indices") == [[[4], [-1], [7], [-1]]]
    assert record.info.dispatch["metadata"] == {"query_start_loc": [0, 1, 2, 3, 3]}
    assert torch.equal(record.after["o"].read()[[0, 2], 0], o[0, [0, 2]])
    assert 5 not in record.info.pools["state"].rows
    assert_replays(tmp_path / "run.zarr")


def rows_of_four(name: str, value: Any) -> Any:
    """A fourth token that is of no request, as where a batch is filled up for a CUDA graph."""
    axis = {"q": 1, "k": 1, "v": 1, "a": 0, "b": 0}.get(name)
    return value if axis is None else torch.cat([value, value.narrow(axis, 0, 1)], axis)


def test_speculative_decode_of_a_layer(tmp_path: Path) -> None:
    slots = ints([4, 1, 7], [2, 3, 5], [0, 0, 0])
    metadata = {
        "num_spec_decodes": 2,
        "spec_query_start_loc": ints(0, 3, 6, 6),
        "spec_state_indices_tensor": slots,
        "num_accepted_tokens": ints(2, 3, 1),
    }
    module, _, out, record = step(tmp_path / "run.zarr", layer, 6, **metadata)
    assert read(record, "state_indices", "num_accepted") == [[[4, 1, 7], [2, 3, 5]], [2, 3]]
    assert torch.equal(record.after["o"].read().flatten(0, 1), out)
    held = states(record)
    assert all(torch.equal(held[slot], module.pool[slot]) for slot in (1, 2, 3, 4, 5, 7))
    assert_replays(tmp_path / "run.zarr")


def test_sequences_that_differ_in_tokens(tmp_path: Path) -> None:
    """Three tokens; one, that reads the slot of a token it does not have; none; and a padding request."""
    slots = ints([4, 1, 7], [2, 3, 5], [6, 8, 6], [0, 0, 0])
    offsets, accepted = ints(0, 3, 4, 4, 5), ints(1, 3, 1, 1)
    given = drafted(5, cu_seqlens=offsets, ssm_state_indices=slots, num_accepted_tokens=accepted)
    before = given["initial_state"].clone()
    (o, after), record = called(tmp_path / "run.zarr", SIGMOID, given)
    assert read(record, "state_indices", "read_indices") == [
        [[4, 1, 7], [2, -1, -1], [-1, -1, -1], [-1, -1, -1]],
        [4, 5, -1, -1],
    ]
    assert record.info.dispatch["metadata"] == {
        "query_start_loc": [0, 3, 4, 4, 5],
        "num_accepted_tokens": [1, 3, 1, 1],
    }
    assert "laid_out_by_capture" in record.info.dispatch
    found = record.after["o"].read()
    assert torch.equal(found[0], o[0, :3])
    assert torch.equal(found[1, 0], o[0, 3])
    held = states(record)
    for slot in (1, 2, 4, 7):
        assert torch.equal(held[slot], after[slot])
    assert torch.equal(after[[3, 5, 6, 8]], before[[3, 5, 6, 8]])
    assert_replays(tmp_path / "run.zarr")


def test_log_gates_in_a_pool(tmp_path: Path) -> None:
    """As OLMo's layers decode."""
    given = drafted(3, cu_seqlens=ints(0, 1, 2, 3), ssm_state_indices=ints(4, 1, 7))
    a, b = given.pop("a"), given.pop("b")
    del given["A_log"], given["dt_bias"]
    given |= {"g": -a[None].float().abs(), "beta": b[None].float().sigmoid()}
    (o, _), record = called(tmp_path / "run.zarr", "fused_recurrent_gated_delta_rule", given)
    assert record.info.conventions == {"gate": "log", "state_layout": "VK", "qk": "raw"}
    assert torch.equal(record.after["o"].read()[:, 0], o[0])
    assert_replays(tmp_path / "run.zarr")


def test_the_fused_speculative_kernel(tmp_path: Path) -> None:
    """It normalises and gates its output: the record has the states, and no o."""
    held = pool(torch.bfloat16)
    given = {
        **packed(4),
        **gate_parameters(),
        "state": held,
        "state_indices": ints([4, 1], [2, 3]),
        "cu_seqlens": ints(0, 2, 4),
        "num_accepted_tokens": ints(1, 2),
        "output_gate": random(4, HV, D).bfloat16(),
        "norm_weight": random(D).bfloat16(),
        "out": torch.empty(4, HV, D, dtype=torch.bfloat16),
        "scale": 0.25,
    }
    module = import_module("vllm._custom_ops")
    _, counts, record = captured(
        tmp_path / "run.zarr", lambda: module.fused_gdn_decode_post_conv_mtp(**given)
    )
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    assert record is not None
    assert set(record.after) == {"state"}
    assert record.info.scalars["scale"] == 0.25
    assert record.info.dispatch["not_recorded"].startswith("o, ")
    after = states(record)
    assert all(torch.equal(after[slot], held[slot]) for slot in (1, 2, 3, 4))
    assert_replays(tmp_path / "run.zarr", against="reference")
    (told,) = replay(Store.open(tmp_path / "run.zarr"), against="recorded", isolate=False).records
    assert told.outcome is Outcome.NOT_COMPARABLE
    assert re.match(
        wording("replay.outputs-left-out", left_out="o, which the kernel normalises and gates"), told.reason
    )


def spoiled(**more: Any) -> dict[str, Any]:
    return drafted(3, **{"cu_seqlens": ints(0, 1, 2, 3), "ssm_state_indices": ints(4, 1, 7), **more})


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (spoiled(is_kda=True), wording("capture.gates-kda")),
        (spoiled(beta=2.0), wording("capture.softplus")),
        (spoiled(inplace_final_state=False), wording("capture.states-not-updated")),
        (spoiled(ssm_state_indices=None), wording("capture.states-not-updated")),
        (spoiled(initial_state=None), wording("capture.states-not-updated")),
        (drafted(0, cu_seqlens=ints(0, 0, 0), ssm_state_indices=ints(4, 1)), wording("capture.no-tokens")),
        (drafted(0, cu_seqlens=ints(0), ssm_state_indices=ints()), wording("capture.no-tokens")),
        (spoiled(ssm_state_indices=ints(4, 1)), wording("capture.fewer-slots")),
        (spoiled(ssm_state_indices=ints(0, 0, 0)), wording("capture.all-padding")),
        (spoiled(cu_seqlens=ints(0, 2, 2, 3)), wording("capture.more-tokens")),
        (spoiled(cu_seqlens=ints(0, 0, 1, 2)), wording("capture.tokens-differ")),
        (
            spoiled(initial_state=pool().to(torch.float8_e4m3fn)),
            wording("capture.states-dtype", dtype="float8_e4m3fn"),
        ),
        (spoiled(window=64), wording("capture.parameter-unknown", parameter="window")),
    ],
)
def test_calls_that_no_operation_describes(
    given: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module(f"{OPS}.fused_sigmoid_gating")
    name = "fused_sigmoid_gating_delta_rule_update"
    original = getattr(module, name)

    def nothing(*args: Any, window: int = 0, **kwargs: Any) -> tuple[Tensor, None]:
        return torch.zeros(1, 3, HV, D), None

    if "window" in given:
        nothing.__qualname__ = nothing.__name__ = name
        nothing.__signature__ = with_window(original)  # type: ignore[attr-defined]
        monkeypatch.setattr(module, name, nothing)
    else:
        monkeypatch.setattr(module, "over_pool_raw", lambda *args: nothing()[0])
    _, counts, _ = captured(tmp_path / "run.zarr", lambda: getattr(module, name)(**given))
    assert (counts.records, counts.failures, counts.first_failure) == (0, 0, None)
    ((found, calls),) = counts.passed_over.items()
    assert re.search(reason, found)
    assert calls == 1


def with_window(function: Callable[..., Any]) -> Any:
    import inspect

    signature = inspect.signature(function)
    extra = inspect.Parameter("window", inspect.Parameter.KEYWORD_ONLY, default=0)
    return signature.replace(parameters=[*signature.parameters.values(), extra])


def test_kernels_that_are_compiled_on_something_are_left_alone(tmp_path: Path) -> None:
    _, counts, _ = captured(tmp_path / "run.zarr", lambda: run(layer(), 6))
    assert (counts.records, counts.failures, counts.first_failure) == (0, 0, None)
    (reason,) = counts.passed_over
    assert re.fullmatch(wording("capture.vllm-without-request"), reason)


def wrapped(name: str) -> Callable[..., Any]:
    """The function as the running capture wraps it."""
    session = runtime.running[-1]._session
    assert session is not None
    return session.wrap_target(VllmAdapter(), Target(OPS, name), getattr(import_module(OPS), name))


def test_tensors_on_a_device(tmp_path: Path) -> None:
    """Rows of the pool and null slots are settled when the copies are on the host, after the step."""
    given = drafted(6, cu_seqlens=ints(0, 2, 4, 6), ssm_state_indices=ints([4, 1], [0, 0], [2, 3]))
    given |= {"num_accepted_tokens": ints(2, 1, 1)}
    with capturing_stand_in(tmp_path / "run.zarr", StandInStreams()) as counts:
        o, _ = wrapped(SIGMOID)(**given)
        given["ssm_state_indices"].fill_(5)  # the next step's
        given["cu_seqlens"].zero_()
    assert (counts.records, counts.failures, counts.first_failure) == (1, 0, None)
    (record,) = Store.open(tmp_path / "run.zarr").records
    assert read(record, "state_indices") == [[[4, 1], [-1, -1], [2, 3]]]
    assert record.info.dispatch["metadata"] == {"query_start_loc": [0, 2, 4, 6]}
    assert torch.equal(record.after["o"].read()[[0, 2]].flatten(0, 1), o[0, [0, 1, 4, 5]])
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("device", [False, True])
def test_nan_of_padding_is_no_trigger(device: bool, broken: bool, tmp_path: Path) -> None:
    """Triton writes no output of a padding request, and no one minds what slot 0 holds."""
    given = drafted(3, cu_seqlens=ints(0, 1, 2, 3), ssm_state_indices=ints(4, 0, 7))
    given["initial_state"][0] = float("nan")
    if broken:
        given["v"][0, 2, 1, 0] = float("inf")
    path, options = tmp_path / "run.zarr", CaptureOptions(on_nonfinite=True)
    with (
        capturing_stand_in(path, StandInStreams(), options) if device else capturing(path, options) as counts
    ):
        function = wrapped(SIGMOID) if device else getattr(import_module(OPS), SIGMOID)
        o, _ = function(**given)
    assert o[0, 1].isnan().all()
    assert (counts.records, counts.failures, counts.first_failure) == (int(broken), 0, None)


def test_packed_decode_in_a_graph(tmp_path: Path) -> None:
    """As vLLM decodes: one graph, replayed on other slots."""
    given = {**packed(3), **gate_parameters(), "initial_state": pool(), "use_qk_l2norm_in_kernel": True}
    given |= {"scale": 0.25, "out": torch.zeros(3, 1, HV, D).bfloat16(), "ssm_state_indices": ints(4, 0, 7)}
    name, graph = "fused_recurrent_gated_delta_rule_packed_decode", StandInGraph()
    with capturing_stand_in(tmp_path / "run.zarr", StandInStreams()) as counts:
        decode = wrapped(name)
        with graph_of(graph):
            decode(**given)
        given["ssm_state_indices"].copy_(ints(1, 3, 0))
        graph.replay()
    assert (counts.failures, counts.first_failure) == (0, None)
    (record,) = Store.open(tmp_path / "run.zarr").records
    assert read(record, "state_indices") == [[[1], [3], [-1]]]


@pytest.mark.every(2)
@pytest.mark.parametrize("place", [OPS, f"{OPS}.chunk"])
@pytest.mark.parametrize("first", [True, False])
def test_wherever_it_is_imported_from(place: str, first: bool, tmp_path: Path) -> None:
    given = drafted(5)
    given = {name: given[name] for name in ("q", "k", "v")}
    given |= {"g": -random(1, 5, HV).abs(), "beta": random(1, 5, HV).sigmoid(), "cu_seqlens": ints(0, 2, 5)}
    if first:
        import_module(place)
    with capturing(tmp_path / "run.zarr") as counts:
        import_module(place).chunk_gated_delta_rule(**given, use_qk_l2norm_in_kernel=True)
    assert (counts.records, counts.failures, counts.first_failure) == (1, 0, None)
    assert_replays(tmp_path / "run.zarr")


def test_ranks_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    groups = SimpleNamespace(_TP=SimpleNamespace(rank_in_group=1, world_size=4), _PP=None)
    monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", groups)
    assert VllmAdapter().parallel() == {"tp": (1, 4)}
    monkeypatch.delitem(sys.modules, "vllm.distributed.parallel_state")
    assert VllmAdapter().parallel() == {}
