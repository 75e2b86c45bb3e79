# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's chunked Gated DeltaNet prefill for Blackwell, the kernel that is served, as a user replays it.

12 warps of six roles, two of which issue tcgen05 products, and TMA descriptors that the kernel edits for each
sequence. Records pass by the rule of `gdnbench replay`: at most twice the error of the same-dtype PyTorch
kernel against float64, plus what rounding the result costs, in each tensor, (sequence, head) and element.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.sim.third_party.apart import Apart, apart

CAPTURES = Path(__file__).parents[3] / "captures"
OP = "gdn_prefill"


@pytest.fixture(scope="module")
def prefill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    yield from apart("flashinfer", "flashinfer_prefill_cases", tmp_path_factory.mktemp("prefill"))


def made(folder: Path, **options: Any) -> Path:
    """A store with one made record."""
    with StoreWriter(folder / "made.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft(OP, synthesise(OP, **options), index=0)])
    return folder / "made.zarr"


def assert_right(prefill: Apart, store: Path, *judged: str) -> None:
    results = prefill.run("records", {"store": str(store), "results": []}).tensors["results"]
    assert results
    for result in results:
        assert result["outcome"] == "pass", result["why"]
        assert result["simulated"]
        assert set(judged) <= set(result["judged"])


@pytest.mark.slow
def test_sequences_of_many_lengths_from_states(prefill: Apart, tmp_path: Path) -> None:
    """Whole chunks and parts of chunks, one token, none; keys that correlate, so that the inverse matters."""
    options = {"seqlens": (70, 1, 0, 129), "heads": (1, 2), "initial_state": True}
    store = made(tmp_path, **options, key_correlation=0.5, gate_span=4.0)
    assert_right(prefill, store, "o", "final_state")


@pytest.mark.slow
def test_engines_agree_to_the_bit(prefill: Apart) -> None:
    """The interpreter and the compiled engine share the machine and no arithmetic. The kernel converts what
    tcgen05.ld loads and has no tcgen05.wait::ld there. The checker finds the same in both; what nothing at
    all orders is how the kernel ends: warp 4 deallocates what other warps still load."""
    call = synthesise(OP, seqlens=(70,), heads=(1, 2), initial_state=True, key_correlation=0.5, gate="linear")
    inputs = ("q", "k", "v", "g", "beta", "cu_seqlens", "initial_state")
    given: dict[str, Any] = {name: call.tensors[name] for name in inputs}
    names = ["interpreter", "compiled"]
    given["names"] = names
    given["outputs"] = {
        "o": [torch.full_like(given["v"], torch.nan) for _ in names],
        "final_state": [torch.full_like(given["initial_state"], torch.nan) for _ in names],
    }
    ran = prefill.run("engines", {**given, "check": True, "found": []}).tensors
    for slow, fast in ran["outputs"].values():
        assert not slow.isnan().any()
        assert torch.equal(slow, fast)
    slow_found, fast_found = ran["found"]
    assert slow_found == fast_found
    assert ("review", "no tcgen05.wait::ld", "register") in {found[:3] for found in fast_found}
    errors = {found[1:3] for found in fast_found if found[0] == "error"}
    assert errors == {("race", "tmem")}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sequences_without_states(dtype: str, prefill: Apart, tmp_path: Path) -> None:
    """Another kernel: its first chunk knows that the state is zero."""
    options = {"seqlens": (200, 64, 5), "heads": (2, 2), "gate_span": 8.0, "dtype": dtype}
    assert_right(prefill, made(tmp_path, **options), "o", "final_state")


@pytest.mark.slow
def test_served_heads(prefill: Apart, tmp_path: Path) -> None:
    """The heads of a served model, 32 CTAs."""
    options = {"seqlens": (130,), "heads": (16, 32), "initial_state": True}
    assert_right(prefill, made(tmp_path, **options), "o", "final_state")


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["prefill", "packed", "resumed"])
def test_captures_of_a_model(capture: str, prefill: Apart) -> None:
    """Calls that a model made on a GPU, through the kernel that a Blackwell GPU would run."""
    assert_right(prefill, CAPTURES / f"{capture}.zarr.zip", "o")
