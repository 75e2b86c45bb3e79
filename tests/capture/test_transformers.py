# SPDX-License-Identifier: Apache-2.0
"""Tiny transformers models: what is in the store is, bit for bit, what a plain spy below the hook saw."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.ops import operation
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import Call
from tests.subset import quick

COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "pad_token_id": 0,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
# Model code, configuration class, model class, and what its configuration takes beyond COMMON.
MODELS = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", {"intermediate_size": 32, **EXPERTS}),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {"intermediate_size": 32}),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", EXPERTS),
}
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")],
    ),
]
FUNCTIONS = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")


def tiny_model(family: str, **changes: Any) -> Any:
    transformers = importlib.import_module("transformers")
    config_name, model_name, extra = MODELS[family]
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**{**COMMON, **extra, **changes})
    return getattr(transformers, model_name)(config).eval()


@contextmanager
def spying(family: str) -> Iterator[list[dict[str, Any]]]:
    """Wrap the two functions by hand, below any capture; yields clones of what goes in and comes out."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    calls: list[dict[str, Any]] = []

    def spy(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def spied(query: Tensor, key: Tensor, value: Tensor, **rest: Any) -> Any:
            given = {"q": query, "k": key, "v": value, **rest}
            kept = {name: x.clone() if isinstance(x, Tensor) else x for name, x in given.items()}
            result = original(query, key, value, **rest)
            calls.append({**kept, "o": result[0].clone(), "final": result[1].clone()})
            return result

        return spied

    with pytest.MonkeyPatch.context() as patch:
        for name in FUNCTIONS:
            patch.setattr(module, name, spy(getattr(module, name)))
        yield calls


def gdn_records(path: Path) -> list[StoredRecord]:
    """The records of the delta rule, without those of the convolutions before it."""
    return [record for record in Store.open(path).records if record.info.op.startswith("gdn_")]


def same_bits(stored: Tensor, seen: Tensor) -> bool:
    """Equal in dtype and in every bit, and in shape but for the flattening of batch and tokens."""
    words = {2: torch.int16, 4: torch.int32}[seen.element_size()]
    return stored.dtype == seen.dtype and torch.equal(
        stored.contiguous().view(words).flatten(), seen.cpu().contiguous().view(words).flatten()
    )


@pytest.mark.every(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("family", "dtype"), quick(product(MODELS, [torch.float32, torch.bfloat16]), 0, 3, 4)
)
def test_generate_is_captured_bit_for_bit(
    family: str, dtype: torch.dtype, device: str, tmp_path: Path
) -> None:
    model = tiny_model(family).to(device, dtype)
    ids = (torch.arange(2 * 67).reshape(2, 67) % 60 + 1).to(device)
    plain = model.generate(ids, max_new_tokens=5, do_sample=False)
    with spying(family) as calls, capturing(tmp_path / "run.zarr") as counts:
        captured = model.generate(ids, max_new_tokens=5, do_sample=False)
    assert torch.equal(plain, captured)
    assert (counts.failures, counts.dropped, counts.first_failure) == (0, 0, None)

    records = gdn_records(tmp_path / "run.zarr")
    layers = [i for i in range(4) if model.config.layer_types[i] == "linear_attention"]
    assert len(records) == len(calls) == 5 * len(layers)
    for record, call in zip(records, calls, strict=True):
        state = "state" if record.info.op == "gdn_decode" else "final_state"
        repeated = record.info.dispatch.get("repeated", 1)
        for name in ("q", "k", "v", "g", "beta"):
            seen = call[name][:, :, ::repeated] if name in ("q", "k") else call[name]
            assert same_bits(record.before[name].read(), seen), name
            assert record.before[name].meta.caller_shape == tuple(call[name].shape)
            assert record.before[name].meta.device.startswith(device)
        assert same_bits(record.after["o"].read(), call["o"])
        assert same_bits(record.after[state].read(), call["final"])
        if record.info.op == "gdn_decode":
            assert same_bits(record.before["state"].read(), call["initial_state"])
        assert record.info.conventions == {"gate": "log", "state_layout": "KV", "qk": "raw"}
    infos = [record.info for record in records]
    assert [i.op for i in infos] == ["gdn_prefill"] * len(layers) + ["gdn_decode"] * 4 * len(layers)
    assert [(i.layer_index, i.step) for i in infos] == [(n, step) for step in range(5) for n in layers]
    assert {i.layer for i in infos} == {f"model.layers.{n}.linear_attn" for n in layers}
    for layer in layers:
        steps = [r for r in records if r.info.layer_index == layer and r.info.op == "gdn_decode"]
        for earlier, later in pairwise(steps):
            assert earlier.after["state"].digest == later.before["state"].digest


def test_records_are_valid_calls_of_their_operation(tmp_path: Path) -> None:
    model = tiny_model("qwen3_next")
    with capturing(tmp_path / "run.zarr"):
        model.generate(torch.ones(3, 9, dtype=torch.int64), max_new_tokens=2, do_sample=False)
    for record in Store.open(tmp_path / "run.zarr").records:
        tensors = {name: handle.read() for name, handle in record.before.items()}
        contract = operation(record.info.op)
        contract.validate(Call(tensors, record.info.scalars, record.info.conventions))
        expected = {
            name: shape
            for name, (shape, _) in contract.outputs(
                Call(tensors, record.info.scalars, record.info.conventions)
            ).items()
        }
        assert expected.items() <= {name: h.meta.shape for name, h in record.after.items()}.items()


def test_every_keeps_whole_steps_and_layer_narrows(tmp_path: Path) -> None:
    model = tiny_model("qwen3_5")
    options = CaptureOptions(op=("gdn_decode",), every=2, first=2, layer=("1-2",))
    with capturing(tmp_path / "run.zarr", options):
        model.generate(torch.ones(1, 5, dtype=torch.int64), max_new_tokens=8, do_sample=False)
    kept = [(r.info.step, r.info.layer_index) for r in Store.open(tmp_path / "run.zarr").records]
    # Step 0 is the prefill; of the decode steps 1..7 every second, twice, each with both layers.
    assert kept == [(1, 1), (1, 2), (3, 1), (3, 2)]


def test_training_keeps_its_gradients(tmp_path: Path) -> None:
    ids = torch.arange(12).reshape(1, 12)
    gradients = []
    for store in (None, tmp_path / "run.zarr"):
        model = tiny_model("qwen3_5").train()
        if store is None:
            model(ids, labels=ids).loss.backward()
        else:
            with capturing(store):
                model(ids, labels=ids).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert len(gdn_records(tmp_path / "run.zarr")) == 3


def test_functions_are_themselves_again_after_the_block(tmp_path: Path) -> None:
    module = importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")
    before = [getattr(module, name) for name in FUNCTIONS]
    forward = module.Qwen3_5GatedDeltaNet.forward
    with capturing(tmp_path / "run.zarr"):
        assert [getattr(module, name) for name in FUNCTIONS] != before
    assert [getattr(module, name) for name in FUNCTIONS] == before
    assert module.Qwen3_5GatedDeltaNet.forward is forward
