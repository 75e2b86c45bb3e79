# SPDX-License-Identifier: Apache-2.0
"""The adapter of vLLM's compressors, on one that saves states by definition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import capturing
from gdnbench.capture.adapters import vllm_compressor
from gdnbench.capture.recorder import Counts
from gdnbench.errors import Exit
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.v4_compress.reference import reference
from tests.capture.frameworks import FOLDER, framework
from tests.capture.source_signatures import parameters
from tests.messages import wording

FEATURES, PREFIX = 8, "model.layers.3.attn"


@pytest.fixture(autouse=True)
def vllm() -> Iterator[None]:
    with framework():
        yield


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def step_of(table: Tensor, tokens: list[tuple[int, int, int]], size: int, padding: int) -> tuple[Any, Tensor]:
    """Metadata and positions of (request, first position, count), with tokens of padding behind."""
    owners = [request for request, _, count in tokens for _ in range(count)]
    positions = [first + token for _, first, count in tokens for token in range(count)]
    slots = [
        int(table[request, at // size]) * size + at % size
        for request, at in zip(owners, positions, strict=True)
    ]
    metadata = SimpleNamespace(
        block_table=table,
        block_size=size,
        slot_mapping=torch.tensor(slots + [-1] * padding),
        token_to_req_indices=torch.tensor(owners + [0] * padding, dtype=torch.int32),
    )
    return metadata, torch.tensor(positions + [0] * padding)


def run(path: Path, compressor: Any, steps: list[tuple[Any, Tensor]], bare: bool = False) -> Counts:
    width = compressor.ape.shape[1]
    with capturing(path) as counts:
        context = import_module("vllm.forward_context")
        for number, (metadata, positions) in enumerate(steps):
            kv_score = random(len(positions) + 1, 2 * width, seed=number)  # a row beyond the step's
            with context.set_forward_context(None if bare else {compressor.state_cache.prefix: metadata}):
                compressor(kv_score, positions, None)
    assert (counts.failures, counts.first_failure) == (0, None)
    return counts


def compressor_of(ratio: int, size: int, pages: int) -> Any:
    width = FEATURES * (2 if ratio == 4 else 1)
    state = random(pages, size + 1, 2 * width)[:, :size]  # pages lie apart
    kind = import_module(vllm_compressor.TARGET.module).DeepseekCompressor
    return kind(FEATURES, ratio, state, PREFIX)


@pytest.mark.parametrize(("ratio", "size"), [(4, 4), (128, 8)], ids=["CSA", "HCA"])
def test_a_prefill_then_decoding(ratio: int, size: int, tmp_path: Path) -> None:
    """A prompt that closes windows, then a token of it beside another request's, in a padded batch."""
    prompt = 2 * ratio + 1
    pages = -(-(prompt + 4) // size)
    table = torch.arange(2 * pages, dtype=torch.int32).view(2, pages) + 1
    compressor = compressor_of(ratio, size, 2 * pages + 1)
    steps = [
        step_of(table, [(0, 0, prompt)], size, 0),
        step_of(table, [(0, prompt, 3), (1, 0, 2)], size, 3),
    ]
    counts = run(tmp_path / "run.zarr", compressor, steps)
    assert (counts.records, counts.passed_over) == (2, {})
    store = Store.open(tmp_path / "run.zarr")
    first, second = store.records
    assert (second.info.op, second.info.layer_index) == ("v4_compress", None)
    assert second.info.scalars == {"ratio": ratio, "overlap": ratio == 4}
    assert second.info.dispatch["made_by_capture"] == ["cu_seqlens", "starts"]
    assert second.info.dispatch["entries_in"] == PREFIX
    assert second.before["cu_seqlens"].read().tolist() == [0, 3, 5]
    assert second.before["starts"].read().tolist() == [prompt, 0]
    assert second.before["kv"].meta.shape == (5, compressor.ape.shape[1])
    width = compressor.ape.shape[1]
    assert torch.equal(second.before["kv"].read(), random(9, 2 * width, seed=1)[:5, :width])
    kept = list(second.info.pools["state"].rows)
    assert torch.equal(second.after["state"].read(), compressor.state_cache.kv_cache[kept])
    assert set(second.after) == {"state"}
    report = replay(store, kernel="torch", against="reference", isolate=False)
    assert report.exit_code is Exit.PASS, [r.reason for r in report.records]
    for record in store.records:
        found = by_definition(record)
        # States are sums rounded to fp32, by half an ulp at most; the oracle's are in fp64.
        assert torch.allclose(record.after["state"].read().double(), found["state"], rtol=2**-24, atol=0)
    made = by_definition(first)["entries"]
    for at in range(ratio - 1, prompt, ratio):
        slot = int(table[0, at // size]) * size + at % size
        # The layer reads scores below 8 as fp32, so weights are off by 8 * 2**-24 at most, of values below 5.
        assert torch.allclose(made[at], compressor.entries[slot], rtol=0, atol=2 * 8 * 2**-24 * 5)


def by_definition(record: StoredRecord) -> dict[str, Tensor]:
    """What the oracle makes of a record's inputs."""
    tensors = {name: handle.read() for name, handle in record.before.items()}
    place = {page: number for number, page in enumerate(record.info.pools["state"].rows)}
    table = tensors["block_table"]
    tensors["block_table"] = torch.tensor([[place.get(int(page), -1) for page in row] for row in table])
    found: dict[str, Tensor] = reference(**tensors, **record.info.scalars)
    return found


def test_a_layer_that_runs_without_a_request(tmp_path: Path) -> None:
    compressor = compressor_of(4, 4, 3)
    step = step_of(torch.tensor([[1, 2]], dtype=torch.int32), [(0, 0, 5)], 4, 0)
    counts = run(tmp_path / "run.zarr", compressor, [step], bare=True)
    ((reason, _),) = counts.passed_over.items()
    assert re.fullmatch(wording("capture.vllm-without-request"), reason)


@pytest.mark.parametrize(
    ("spoilt", "expected"),
    [
        ("slots", wording("capture.states-elsewhere")),
        ("positions", wording("capture.tokens-out-of-order")),
        ("all padding", wording("capture.compressor-padding")),
    ],
)
def test_steps_that_the_operation_does_not_describe(spoilt: str, expected: str, tmp_path: Path) -> None:
    compressor = compressor_of(4, 4, 4)
    metadata, positions = step_of(torch.tensor([[1, 2]], dtype=torch.int32), [(0, 0, 5)], 4, 0)
    if spoilt == "slots":
        metadata.slot_mapping[4] = 12
    elif spoilt == "positions":
        positions[2] = 7
    else:
        metadata.slot_mapping[:] = -1
    counts = run(tmp_path / "run.zarr", compressor, [(metadata, positions)])
    ((reason, _),) = counts.passed_over.items()
    assert re.fullmatch(expected, reason)


def test_the_stand_in_has_the_signature() -> None:
    known = vllm_compressor.SIGNATURES.functions[vllm_compressor.FORWARD]
    file = FOLDER / "vllm/models/deepseek_v4/compressor.py"
    assert parameters(file, vllm_compressor.FORWARD) == known.parameters
