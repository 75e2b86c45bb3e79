# SPDX-License-Identifier: Apache-2.0
"""Whose the rows of windowed attention are in steps of vLLM and SGLang: each row is a token of the step."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gdnbench.capture import capturing
from gdnbench.capture.adapters.vllm_steps import part_of_window
from gdnbench.store.reader import Store
from tests.capture import test_flashinfer_sparse_mla as over_flashinfer
from tests.capture import test_sglang_deepseek_v4 as of_sglang
from tests.capture import test_vllm_deepseek_v4 as of_vllm
from tests.capture.frameworks import framework
from tests.capture.test_sglang_steps import RUNNER, batch
from tests.capture.test_vllm_steps import Plan, runner_of

HEADS = 4
PREFIX = "model.layers.2.attn.swa_cache"
V41 = "vllm.models.deepseek_v41.nvidia.flashinfer_sparse"


@pytest.fixture(autouse=True)
def engines() -> Iterator[None]:
    with framework():
        yield


def claims_of(path: Path) -> Any:
    (record,) = Store.open(path).records
    return record.info.dispatch.get("lineage")


def windows_of(rows: int) -> SimpleNamespace:
    """A DeepseekSparseSWAMetadata of decodes."""
    indices, lengths = of_vllm.windows()
    return SimpleNamespace(
        decode_swa_indices=indices,
        decode_swa_lens=lengths,
        num_decode_tokens=rows,
        query_start_loc=torch.tensor([0, 2, 3, 3], dtype=torch.int32),
        seq_lens=torch.tensor([198, 9, 0], dtype=torch.int32),
    )


@pytest.mark.parametrize("op", ["swa_decode", "v4_decode"])
def test_vllm(op: str, tmp_path: Path) -> None:
    """A draft of a behind its token, a token of b, and a row that fills a graph."""
    plan = Plan({"a": 2, "b": 1}, [196, 8], [1, 0], [1, 1]).scheduled(None)
    with capturing(tmp_path / "run.zarr") as counts:
        kind = import_module(of_vllm.MODULE).DeepseekV4FlashMLAAttention
        extra = of_vllm.extra(64) if op == "v4_decode" else None
        layer = kind(2, of_vllm.pages(), torch.linspace(-1, 1, HEADS), extra)
        q = of_vllm.random(4, HEADS, 512)

        def model(runner: Any) -> None:
            with import_module("vllm.forward_context").set_forward_context({PREFIX: windows_of(4)}):
                layer.forward_mqa(q, None, None, torch.empty_like(q))

        plan.model = model
        runner_of("V1").execute_model(plan)
    assert (counts.failures, counts.records, counts.unclaimed) == (0, 1, {})
    assert Store.open(tmp_path / "run.zarr").records[0].info.op == op
    assert claims_of(tmp_path / "run.zarr") == {
        "requests": ["a", "a", "b", None],
        "positions": [196, 197, 8, None],
        "padding": [3],
    }


@pytest.mark.slow
def test_prefill_of_vllm_over_flashinfer(tmp_path: Path) -> None:
    """Its call has the tokens behind the step's one decode, and offsets that begin again at 0."""
    plan = Plan({"a": 1, "b": 3}, [99, 0], [-1, -1], [1, 1]).scheduled(None)
    step = windows_of(1)
    with capturing(tmp_path / "run.zarr") as counts:
        offsets = torch.tensor([0, 3], dtype=torch.int32)
        arguments = over_flashinfer.given(over_flashinfer.pages(), 3, cum_seq_lens_q=offsets, max_q_len=3)
        arguments |= {"query": arguments["query"].squeeze(1), "seq_lens": over_flashinfer.ints(3)}
        q = arguments.pop("query")
        layer = import_module(V41).DeepseekV4FlashInferMLAAttention(2, arguments)
        layer.swa_cache_layer = SimpleNamespace(prefix=PREFIX)

        def model(runner: Any) -> None:
            with import_module("vllm.forward_context").set_forward_context({PREFIX: step}):
                layer.forward_mqa(q, None, None, torch.empty_like(q))

        plan.model = model
        runner_of("V2").execute_model(plan)
    assert (counts.failures, counts.first_failure, counts.records, counts.unclaimed) == (0, None, 1, {})
    assert claims_of(tmp_path / "run.zarr") == {
        "requests": ["b", "b", "b"],
        "positions": [0, 1, 2],
        "padding": [],
    }


def test_which_tokens_a_table_of_vllm_is_of() -> None:
    """Three tokens of decodes and eight of prefills, in the buffers of the step."""
    offsets, decodes = torch.arange(6, dtype=torch.int32), torch.zeros(16, 1, 128, dtype=torch.int32)
    prefills = torch.zeros(8, 1, 128, dtype=torch.int32)
    step = SimpleNamespace(
        query_start_loc=offsets,
        num_decode_tokens=3,
        decode_swa_indices=decodes,
        prefill_swa_indices=prefills,
    )

    def numbers(rows: int, **tables: Any) -> Any:
        part = part_of_window(rows, step, **tables)
        return part and (part.tokens, part.numbers)

    assert numbers(3) == (True, range(3))
    assert numbers(3, offsets=offsets[:4]) == (True, range(3))
    assert numbers(8, offsets=offsets[3:] - 3) == (True, range(3, 11))
    assert numbers(3, indices=decodes[:3]) == (True, range(3))
    assert numbers(4, indices=prefills[:4]) == (True, range(3, 7))
    assert numbers(2, indices=prefills[6:]) == (True, range(9, 11))
    assert numbers(2, indices=torch.zeros(2, 1, 128, dtype=torch.int32)) is None
    assert part_of_window(3, None) is None


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"sm": 120}, {"sm": 100}, {"older": True}])
def test_sglang(more: dict[str, Any], tmp_path: Path) -> None:
    """Two decodes, and a row of no request."""
    given = batch("decode", {"a": 327, "b": 4})
    with capturing(tmp_path / "run.zarr") as counts:
        models = import_module("sglang.srt.models.deepseek_v4")
        context = import_module("sglang.srt.model_executor.forward_context")
        metadata = SimpleNamespace(core_attn_metadata=of_sglang.step(128))
        backend = models.Backend(of_sglang.pages(), torch.linspace(-1, 1, HEADS), metadata, **more)
        layer, q = models.MQALayer(2), of_sglang.random(3, HEADS, 512)

        def model(_: Any) -> None:
            with context.forward_context(backend):
                layer(q)

        given.model = model
        import_module(RUNNER).ModelRunner().forward(given)
    assert (counts.failures, counts.records, counts.unclaimed) == (0, 1, {})
    assert claims_of(tmp_path / "run.zarr") == {
        "requests": ["a", "b", None],
        "positions": [327, 4, None],
        "padding": [2],
    }
