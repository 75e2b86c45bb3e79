# SPDX-License-Identifier: Apache-2.0
"""Tiny transformers models with Kimi Delta Attention: what is in the store is, bit for bit, what a plain spy
below the hook saw, and replays."""

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
from gdnbench.errors import Exit
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store, StoredRecord
from tests.capture.test_transformers import same_bits
from tests.subset import quick

LAYERS = ["full_attention", "linear_attention", "linear_attention"]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "layer_types": LAYERS,
    "mlp_layer_types": ["dense"] * 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
}
# Model code: configuration class, model class, the layer's name in a block, and sizes of its own.
MODELS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "kimi_linear": (
        "KimiLinearConfig",
        "KimiLinearForCausalLM",
        "self_attn",
        {"linear_head_dim": 16, "linear_num_heads": 2},
    ),
    "bailing_hybrid": (
        "BailingHybridConfig",
        "BailingHybridForCausalLM",
        "self_attn",
        {"head_dim": 16, "n_group": 1, "topk_group": 1},
    ),
}
FUNCTIONS = ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention")


def tiny_model(family: str) -> Any:
    transformers = importlib.import_module("transformers")
    config, model, _, extra = MODELS[family]
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**{**SIZES, **extra})).eval()


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


def kda_records(path: Path) -> list[StoredRecord]:
    return [record for record in Store.open(path).records if record.info.op.startswith("kda_")]


@pytest.mark.every(2)
@pytest.mark.parametrize(("family", "dtype"), quick(product(MODELS, [torch.float32, torch.bfloat16]), 0, 3))
def test_generate_is_captured_bit_for_bit_and_replays(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = tiny_model(family).to(dtype)
    ids = torch.arange(2 * 37).reshape(2, 37) % 60 + 1
    plain = model.generate(ids, max_new_tokens=4, do_sample=False)
    path = tmp_path / "run.zarr"
    with spying(family) as calls, capturing(path) as counts:
        captured = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(plain, captured)
    assert (counts.failures, counts.dropped, counts.first_failure, counts.passed_over) == (0, 0, None, {})

    records = kda_records(path)
    assert len(records) == len(calls) == 8
    for record, call in zip(records, calls, strict=True):
        decodes = record.info.op == "kda_decode"
        for name in ("q", "k", "v", "g", "beta"):
            assert same_bits(record.before[name].read(), call[name]), name
            assert record.before[name].meta.caller_shape == tuple(call[name].shape)
        assert same_bits(record.after["o"].read(), call["o"])
        assert same_bits(record.after["state" if decodes else "final_state"].read(), call["final"])
        if decodes:
            assert same_bits(record.before["state"].read(), call["initial_state"])
        forms = {"gate": "log", "beta_form": "value", "state_layout": "KV", "qk": "raw"}
        assert forms.items() <= record.info.conventions.items()
    infos = [record.info for record in records]
    assert [i.op for i in infos] == ["kda_prefill"] * 2 + ["kda_decode"] * 6
    assert [(i.layer_index, i.step) for i in infos] == [(n, step) for step in range(4) for n in (1, 2)]
    assert {i.layer for i in infos} == {f"model.layers.{n}.{MODELS[family][2]}" for n in (1, 2)}
    for layer in (1, 2):
        steps = [r for r in records if r.info.layer_index == layer and r.info.op == "kda_decode"]
        for earlier, later in pairwise(steps):
            assert earlier.after["state"].digest == later.before["state"].digest
    # One row of the cache each: the claims name it, and where its first token of the call stands.
    assert [i.dispatch["lineage"]["positions"][0] for i in infos if i.layer_index == 1] == [0, 37, 38, 39]

    chosen = [n for n, record in enumerate(Store.open(path).records) if record.info.op.startswith("kda_")]
    for kernel in ("reference", "torch"):
        report = replay(Store.open(path), kernel=kernel, against="recorded", records=chosen, isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


def test_the_convolution_before_it_is_captured(tmp_path: Path) -> None:
    model = tiny_model("kimi_linear")
    with capturing(tmp_path / "run.zarr") as counts:
        model.generate(torch.ones(1, 9, dtype=torch.int64), max_new_tokens=3, do_sample=False)
    assert counts.failures == 0
    ops = [r.info.op for r in Store.open(tmp_path / "run.zarr").records if r.info.layer_index == 1]
    assert ops == ["conv_prefill", "kda_prefill"] + ["conv_decode", "kda_decode"] * 2


def test_a_prompt_that_goes_on(tmp_path: Path) -> None:
    """The second piece of 23 tokens begins with the state that the first one left."""
    model, ids = tiny_model("bailing_hybrid"), torch.arange(44).reshape(1, 44) + 1
    with torch.no_grad(), capturing(tmp_path / "run.zarr", CaptureOptions(op=("kda_prefill",))):
        cache = model(input_ids=ids[:, :21], use_cache=True).cache
        model(input_ids=ids[:, 21:], cache=cache, use_cache=True)
    first, second = (r for r in kda_records(tmp_path / "run.zarr") if r.info.layer_index == 2)
    assert "initial_state" not in first.before
    assert second.before["initial_state"].digest == first.after["final_state"].digest
    report = replay(Store.open(tmp_path / "run.zarr"), kernel="torch", against="recorded", isolate=False)
    assert report.exit_code is Exit.PASS, [r.reason for r in report.records]


def test_the_text_model_of_glm(tmp_path: Path) -> None:
    """Without a cache, which has no length where no layer is of attention; its gates have a bound."""
    sizes = {
        "hc_mult": 2,
        "linear_head_dim": 16,
        "linear_num_heads": 2,
        "num_hidden_layers": 2,
        "qk_rope_head_dim": 0,
    }
    own = {"layer_types": LAYERS[1:], "mlp_layer_types": ["dense"] * 2}
    config = importlib.import_module("transformers").Glm5NextTextConfig(**{**SIZES, **sizes, **own})
    torch.manual_seed(0)
    model = importlib.import_module("transformers").AutoModel.from_config(config).eval()
    with torch.no_grad(), capturing(tmp_path / "run.zarr", CaptureOptions(op=("kda_prefill",))):
        model(input_ids=torch.arange(1, 22)[None], use_cache=False)
    records = kda_records(tmp_path / "run.zarr")
    assert [r.info.layer_index for r in records] == [0, 1]
    assert all(float(r.before["g"].read().min()) >= -5 for r in records)
    report = replay(Store.open(tmp_path / "run.zarr"), kernel="torch", against="recorded", isolate=False)
    assert report.exit_code is Exit.PASS, [r.reason for r in report.records]
