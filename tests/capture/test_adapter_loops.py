# SPDX-License-Identifier: Apache-2.0
"""Loops of the benchmark of adapters: each adapter takes what its loop calls, and nothing stays behind."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.store.access_log import AccessFlag, AccessKind
from gdnbench.store.access_pieces import Piece, piece_of
from gdnbench.store.reader import Store
from scripts.benchmarks import adapter_loops
from tests.subset import quick

LAYERS = 2


@pytest.fixture
def loops() -> ModuleType:
    return adapter_loops


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("fla", "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule"),
        ("flashinfer", "flashinfer.gdn_decode:gated_delta_rule_decode_pretranspose"),
        (
            "vllm",
            "vllm.third_party.flash_linear_attention.ops.fused_recurrent:"
            "fused_recurrent_gated_delta_rule_packed_decode",
        ),
        ("sglang", "sglang.srt.layers.attention.linear.kernels.gdn_triton:TritonGDNKernel.decode"),
        ("table", "paged_engine:sparse_decode"),
    ],
)
def test_stand_ins_are_captured_and_go(
    name: str, target: str, loops: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root, module = target.partition(".")[0].partition(":")[0], target.partition(":")[0]
    installed = ModuleType(module)
    monkeypatch.setitem(sys.modules, root, ModuleType(root))
    monkeypatch.setitem(sys.modules, module, installed)
    before = {one: there for one, there in sys.modules.items() if one.partition(".")[0] == root}
    with loops.LOOPS[name](loops.Sizes.of("cpu", LAYERS)) as loop:
        assert not loop.own
        table = tmp_path / "table.toml"
        table.write_text(loop.table)
        options = CaptureOptions(table=(str(table),) if loop.table else ())
        with capturing(tmp_path / "run.zarr", options) as counts:
            loop.step()
    assert (counts.records, counts.first_failure, counts.passed_over) == (LAYERS, None, {})
    with Store.open(tmp_path / "run.zarr") as store:
        assert {record.info.target for record in store.records} == {target}
    after = {one: there for one, there in sys.modules.items() if one.partition(".")[0] == root}
    assert after == before
    assert vars(installed).keys() == vars(ModuleType(module)).keys()  # nothing was put into it


@pytest.mark.parametrize("name", quick(["fla", "flashinfer", "vllm", "sglang"], 2))
def test_their_calls_are_logged_as_digests(name: str, loops: ModuleType, tmp_path: Path) -> None:
    with loops.LOOPS[name](loops.Sizes.of("cpu", LAYERS)) as loop:
        piece = _logged(loop, tmp_path / "run.zarr")
    assert [one["name"] for one in piece.chains] == ["state"]
    assert piece.rows["kind"].tolist() == [AccessKind.READ, AccessKind.WRITE] * LAYERS
    assert not (piece.rows["flags"] & AccessFlag.DIGEST_UNKNOWN).any()


def test_a_call_of_padding_alone_is_logged_without_accesses(
    loops: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slot 0 is vLLM's null slot."""
    monkeypatch.setattr(loops, "SLOT", 0)
    with loops.LOOPS["vllm"](loops.Sizes.of("cpu", LAYERS)) as loop:
        piece = _logged(loop, tmp_path / "run.zarr")
    assert piece.rows["kind"].tolist() == [AccessKind.NONE] * LAYERS


def _logged(loop: Any, store: Path) -> Piece:
    with capturing(store, CaptureOptions(digests=True)) as counts:
        loop.step()
    assert (counts.digested, counts.first_failure, counts.passed_over) == (LAYERS, None, {})
    with Store.open(store) as opened:
        (piece,) = (piece_of(record) for record in opened.records)
    return piece
