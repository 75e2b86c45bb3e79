# SPDX-License-Identifier: Apache-2.0
"""The transformers adapter on calls as other releases make them, and decorated functions."""

from __future__ import annotations

import importlib
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing, record
from gdnbench.capture.adapter import Target
from gdnbench.capture.adapters import load_adapters, select_targets
from gdnbench.capture.adapters.gdn import own_slots, refuse_mixed_dtypes
from gdnbench.capture.adapters.transformers import ADAPTER
from gdnbench.errors import BadInputError
from gdnbench.ops import operation
from gdnbench.store.reader import Store
from gdnbench_kernels.contract import Call
from tests.messages import wording

MODULE = "transformers.models.qwen3_next.modeling_qwen3_next"


def arguments(
    batch: int, tokens: int, *, heads: int = 4, value_heads: int = 4, **more: Any
) -> dict[str, Any]:
    def random(*shape: int) -> Tensor:
        return torch.randn(*shape)

    return {
        "query": random(batch, tokens, heads, 8),
        "key": random(batch, tokens, heads, 8),
        "value": random(batch, tokens, value_heads, 16),
        "g": -torch.rand(batch, tokens, value_heads),
        "beta": torch.rand(batch, tokens, value_heads),
        **more,
    }


def validated(seen: Any) -> dict[str, Tensor]:
    """The tensors as the contract's own validation accepts them."""
    tensors = {n: s.tensor if s.shape is None else s.tensor.reshape(s.shape) for n, s in seen.tensors.items()}
    operation(seen.op).validate(Call(tensors, seen.scalars, seen.conventions))
    return tensors


@pytest.mark.parametrize(
    ("function", "tokens", "state", "keep", "op"),
    [
        ("torch_chunk_gated_delta_rule", 7, False, True, "gdn_prefill"),
        ("chunk_gated_delta_rule", 1, True, True, "gdn_prefill"),
        ("torch_recurrent_gated_delta_rule", 1, True, True, "gdn_decode"),
        ("fused_recurrent_gated_delta_rule", 1, True, True, "gdn_decode"),
        ("torch_recurrent_gated_delta_rule", 3, True, True, "gdn_prefill"),
        ("torch_recurrent_gated_delta_rule", 1, False, True, "gdn_prefill"),
        ("torch_recurrent_gated_delta_rule", 1, True, False, "gdn_prefill"),
    ],
)
def test_what_a_call_is_recorded_as(function: str, tokens: int, state: bool, keep: bool, op: str) -> None:
    initial = torch.randn(2, 4, 8, 16) if state else None
    given = arguments(2, tokens, initial_state=initial, output_final_state=keep)
    seen = ADAPTER.before(Target(MODULE, function), given, None)
    assert seen.op == op
    tensors = validated(seen)
    if op == "gdn_prefill":
        assert tensors["cu_seqlens"].tolist() == [0, tokens, 2 * tokens]
        assert seen.scalars["output_final_state"] is keep
        assert torch.equal(tensors["v"][tokens], given["value"][1, 0])
    else:
        assert tensors["state"] is initial
        assert tensors["state_indices"].tolist() == [[0], [1]]


def test_a_final_state_is_fp32_whatever_the_initial_one_is() -> None:
    """As transformers' own functions return it."""
    given = arguments(2, 7, initial_state=torch.zeros(2, 4, 8, 16).bfloat16(), output_final_state=True)
    seen = ADAPTER.before(Target(MODULE, "torch_chunk_gated_delta_rule"), given, None)
    call = Call(validated(seen), seen.scalars, seen.conventions)
    returned = importlib.import_module(MODULE).torch_chunk_gated_delta_rule(**given)[1]
    assert operation(seen.op).outputs(call)["final_state"] == (tuple(returned.shape), returned.dtype)


def test_a_packed_batch_keeps_its_own_cu_seqlens() -> None:
    cu_seqlens = torch.tensor([0, 3, 3, 10])
    given = arguments(1, 10, cu_seqlens=cu_seqlens, initial_state=torch.zeros(3, 4, 8, 16))
    seen = ADAPTER.before(Target(MODULE, "chunk_gated_delta_rule"), given, None)
    assert validated(seen)["cu_seqlens"] is cu_seqlens


def test_argument_names_and_scale_of_flash_linear_attention() -> None:
    given = arguments(1, 4, scale=0.25, use_qk_l2norm_in_kernel=True)
    for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v")):
        given[theirs] = given.pop(ours)
    seen = ADAPTER.before(Target(MODULE, "chunk_gated_delta_rule"), given, None)
    assert seen.scalars["scale"] == 0.25
    assert seen.conventions["qk"] == "raw"
    assert torch.equal(validated(seen)["q"], given["q"][0])


def test_beta_up_to_two_where_the_layer_says_so() -> None:
    class Layer:
        allow_neg_eigval = True

    given = arguments(1, 4)
    given["beta"] *= 2
    assert ADAPTER.before(Target(MODULE, "chunk_gated_delta_rule"), given, Layer()).scalars["beta_max"] == 2.0


def test_grouped_heads_are_not_searched_for_repeats() -> None:
    target = Target(MODULE, "torch_chunk_gated_delta_rule")
    assert ADAPTER.before(target, arguments(1, 4, heads=2), None).finish is None
    assert ADAPTER.before(target, arguments(1, 4, heads=4), None).finish is not None


def test_targets_by_framework_family_function_and_glob() -> None:
    adapters, problems = load_adapters()
    assert problems == []

    def chosen(*patterns: str) -> set[str]:
        return {target.name for _, target in select_targets(adapters, patterns)}

    frameworks = ("transformers", "fla", "flashinfer", "vllm", "sglang", "flash_mla")
    # The copies of flash-linear-attention that vLLM and SGLang have lie in folders called fla too: 8 and 10.
    # vLLM and SGLang call FlashInfer's sparse attention (6 names), its HCA kernel (3) and DeepGEMM's scores
    # (15). Top-k has 3 names in vLLM and 10 in SGLang, compressors 1 and 3. SGLang's copy of FlashMLA is a
    # third of that name. Of Kimi Delta Attention transformers has 3 models with 5 names each,
    # fla 8, FlashInfer 5, vLLM 40 and SGLang 23.
    assert [len(chosen(framework)) for framework in frameworks] == [
        29 + 3 * 5,
        41 + 8 + 4,
        5 + 6 + 5 + 3,
        38 + 6 + 40 + 3 + 15 + 3 + 1,
        23 + 6 + 23 + 3 + 15 + 10 + 3,
        2 + 1,
    ]
    assert chosen(*frameworks) == chosen()
    assert chosen("qwen3_next") == {name for name in chosen() if name.startswith(MODULE + ":")}
    assert len(chosen("torch_chunk*")) == 4
    assert chosen(f"{MODULE}:chunk_gated_delta_rule") == {f"{MODULE}:chunk_gated_delta_rule"}
    with pytest.raises(BadInputError, match=wording("capture.target-unknown", pattern="qwen9")):
        chosen("qwen9")


def test_a_decorated_function_with_names_of_its_own(tmp_path: Path) -> None:
    @record(
        "gdn_prefill",
        names={"queries": "q", "alpha": "g", "offsets": "cu_seqlens"},
        conventions={"gate": "linear"},
    )
    def mine(
        queries: Tensor,
        k: Tensor,
        v: Tensor,
        alpha: Tensor,
        beta: Tensor,
        offsets: Tensor,
        scale: float = 0.5,
    ) -> tuple[Tensor, Tensor]:
        return v * scale, torch.zeros(1, 4, 16, 8)

    given = arguments(1, 6)
    call = (given["query"][0], given["key"][0], given["value"][0], given["g"][0].exp(), given["beta"][0])
    offsets = torch.tensor([0, 6], dtype=torch.int32)
    outside = mine(*call, offsets)
    with capturing(tmp_path / "run.zarr", CaptureOptions(target=(f"{mine.__module__}:*mine",))):
        inside = mine(*call, offsets=offsets)
    assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))
    (stored,) = Store.open(tmp_path / "run.zarr").records
    assert stored.info.conventions == {
        "gate": "linear",
        "state_layout": "VK",
        "qk": "normalised",
        "offsets": "any",
    }
    assert stored.info.scalars["scale"] == 0.5
    assert stored.info.target == f"{mine.__module__}:{mine.__qualname__}"
    for name, tensor in zip(("q", "k", "v", "g", "beta"), call, strict=True):
        assert torch.equal(stored.before[name].read(), tensor)
    assert torch.equal(stored.after["o"].read(), outside[0])
    assert stored.after["final_state"].meta.shape == (1, 4, 16, 8)


def test_a_decorator_for_no_operation_is_refused() -> None:
    with pytest.raises(
        BadInputError, match=wording("ops.operation-unknown", name="swa", known="swa_decode, conv_decode")
    ):
        record("swa")


def test_a_refusal_keeps_no_tensor_of_a_call() -> None:
    q, k, v = (torch.zeros(2) for _ in range(3))
    refuse_mixed_dtypes(q, k, v)
    gone = weakref.ref(q)
    del q
    assert gone() is None


def test_slots_of_a_batch_are_made_once() -> None:
    assert own_slots(3) is own_slots(3)
