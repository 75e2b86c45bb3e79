# SPDX-License-Identifier: Apache-2.0
"""Calls of attention and state functions that no adapter records: counted, named and in the store."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.capture.adapters import load_adapters, select_uncaptured
from gdnbench.capture.adapters import uncaptured as known
from gdnbench.capture.adapters.uncaptured import UNCAPTURED
from gdnbench.capture.outcome import Outcome
from gdnbench.capture.recorder import Counts
from gdnbench.cli.show import show
from gdnbench.store.sealer import Progress
from gdnbench.store.summary import uncaptured_calls
from tests.capture.conftest import ToyFramework
from tests.capture.frameworks import FOLDER, framework
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of, patched
from tests.messages import wording

MEGA = "vllm.models.deepseek_v41.nvidia.flash_mla_mega_attn"
MEGA_CALL = f"{MEGA}.DeepseekV4MegaAttnAttention.forward_mqa"
RING = "sglang.kernels.ops.attention.linear.gdn_replayssm_spec_decode"
FOLD = "sglang.kernels.ops.attention.linear.gdn_replayssm_spec_fold"
CHUNK = "fla.ops.gated_delta_rule.chunk"


@pytest.fixture(autouse=True)
def frameworks() -> Iterator[None]:
    with framework():
        yield


def mega_layer() -> Callable[[], torch.Tensor]:
    layer = import_module(MEGA).DeepseekV4MegaAttnAttention(0)
    context = import_module("vllm.forward_context")

    def call() -> torch.Tensor:
        q = torch.ones(2, 4)
        out = torch.empty(2, 4)
        with context.set_forward_context({}):
            layer.forward_mqa(q, None, None, out)
        return out

    return call


def prefill() -> None:
    """A call that is recorded."""
    tensors = [torch.rand(1, 4, 2, 8) for _ in range(3)]
    import_module(CHUNK).chunk_gated_delta_rule(*tensors, -torch.rand(1, 4, 2), torch.rand(1, 4, 2))


def calls(counts: Counts) -> dict[str, tuple[int, int]]:
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    return {name: (one["calls"], one["once"]) for name, one in counts.uncaptured.items()}


def test_a_layer_of_vllm(tmp_path: Path) -> None:
    with capturing(tmp_path / "run.zarr") as counts:
        call = mega_layer()
        outs = [call() for _ in range(3)]
    assert calls(counts) == {MEGA_CALL: (3, 0)}
    assert counts.uncaptured[MEGA_CALL]["reason"] == known.QUERIES_BEFORE_ROPE
    assert counts.records == 0
    assert all(torch.equal(out, -torch.ones(2, 4)) for out in outs)
    call()
    assert calls(counts) == {MEGA_CALL: (3, 0)}


def test_what_was_imported_before(tmp_path: Path) -> None:
    call = mega_layer()
    with capturing(tmp_path / "run.zarr") as counts:
        call()
    assert calls(counts) == {MEGA_CALL: (1, 0)}


def test_of_nested_calls_the_outermost(tmp_path: Path) -> None:
    with capturing(tmp_path / "run.zarr") as counts:
        fold = import_module(FOLD)
        states = torch.zeros(2)
        fold.commit_gdn_replayssm_fold_after_verify(states)
        fold.commit_gdn_replayssm_fold_all_layers(states)
    assert calls(counts) == {
        f"{FOLD}.commit_gdn_replayssm_fold_after_verify": (1, 0),
        f"{FOLD}.commit_gdn_replayssm_fold_all_layers": (1, 0),
    }
    assert states.tolist() == [2, 2]


def test_what_a_recorded_call_makes_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = import_module("fla.rule").batch
    with capturing(tmp_path / "run.zarr") as counts:
        commit = import_module(FOLD).commit_gdn_replayssm_fold_all_layers

        def batch(*args: Any, **kwargs: Any) -> Any:
            commit(torch.zeros(1))
            return below(*args, **kwargs)

        monkeypatch.setattr(import_module(CHUNK), "batch", batch)
        prefill()
        commit(torch.zeros(1))
    assert counts.records == 1
    assert calls(counts) == {f"{FOLD}.commit_gdn_replayssm_fold_all_layers": (1, 0)}


def test_a_function_of_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = import_module(RING)
    monkeypatch.setattr(ring, "alias", ring.gdn_replayssm_spec_decode, raising=False)
    with capturing(tmp_path / "run.zarr") as counts:
        v = torch.ones(3)
        for name in ("alias", "gdn_replayssm_spec_decode"):
            getattr(ring, name)(None, None, v, None, torch.empty(3))
    assert calls(counts) == {f"{RING}.gdn_replayssm_spec_decode": (2, 0)}
    assert ring.alias is ring.gdn_replayssm_spec_decode


def test_in_a_cuda_graph(tmp_path: Path) -> None:
    graph = StandInGraph()
    call = mega_layer()
    with capturing_stand_in(tmp_path / "run.zarr", StandInStreams()) as counts, patched():
        call()
        with graph_of(graph):
            call()
        graph.replay()
    assert calls(counts) == {MEGA_CALL: (2, 1)}


@pytest.mark.slow  # imports of torch.compile
def test_in_compiled_code(tmp_path: Path) -> None:
    with capturing(tmp_path / "run.zarr") as counts:
        commit = import_module(FOLD).commit_gdn_replayssm_fold_all_layers
        compiled = torch.compile(lambda x: (commit(x), x * 2)[1], backend="eager", fullgraph=True)
        outs = [compiled(torch.zeros(2)).tolist() for _ in range(3)]
    assert outs == [[2, 2]] * 3
    assert calls(counts) == {f"{FOLD}.commit_gdn_replayssm_fold_all_layers": (1, 1)}


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ({"target": ("vllm",)}, True),
        ({"target": ("*deepseek_v41*",)}, True),
        ({"target": ("fla",)}, False),
        ({"op": ("swa_decode",)}, True),
        ({"op": ("gdn_decode",)}, False),
        ({"first": 1, "paused": True, "signal": "USR2"}, True),
    ],
)
def test_with_options(options: dict[str, Any], counted: bool, tmp_path: Path) -> None:
    with capturing(tmp_path / "run.zarr", CaptureOptions(**options)) as counts:
        mega_layer()()
    assert calls(counts) == ({MEGA_CALL: (1, 0)} if counted else {})


def test_the_store_and_show_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with capturing(tmp_path / "run.zarr"):
        prefill()
        call = mega_layer()
        call()
        call()
    show(str(tmp_path / "run.zarr"), 0)
    assert f"not captured\n  {MEGA_CALL}: 2 calls ({known.QUERIES_BEFORE_ROPE})\n" in capsys.readouterr().out
    show(str(tmp_path / "run.zarr"), 0, json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["uncaptured"] == {MEGA_CALL: {"calls": 2, "once": 0, "reason": known.QUERIES_BEFORE_ROPE}}


def test_what_the_command_says(tmp_path: Path) -> None:
    """Of several processes, one of which was killed after its first call."""
    one = {"calls": 90, "once": 3, "reason": "why"}
    notes = [
        {"event": "started"},
        *({"event": "uncaptured", "function": name, "reason": "why"} for name in ("m.f", "m.g")),
        {"event": "closed", "uncaptured": {"m.f": one, "m.h": {"calls": 1, "once": 0, "reason": "also"}}},
        {"event": "closed", "uncaptured": {"m.f": {"calls": 6, "once": 0, "reason": "why"}}},
    ]
    lines = Outcome.from_notes(tmp_path, 0, Progress(), (), notes, None).summary(tmp_path)
    said = [line for line in lines if line.startswith("not captured")]
    assert len(said) == 3
    whole = wording("capture.not-captured", calls="96 calls", function=" of m.f", reason="why")
    assert re.fullmatch(f"not captured: {whole}" + wording("capture.not-captured-once", calls=3), said[0])
    killed = wording("capture.not-captured-killed", function=" of m.g", reason="why")
    assert re.fullmatch(f"not captured: {killed}", said[1])
    assert said[2] == "not captured: 1 call of m.h (also)"


@pytest.mark.slow  # a process that imports torch
def test_a_program(toy: ToyFramework, tmp_path: Path) -> None:
    program = toy.script(
        f"""
        import torch, {FOLD} as fold
        for _ in range(4):
            fold.commit_gdn_replayssm_fold_after_verify(torch.zeros(1))
        """
    )
    ran = toy.capture(
        tmp_path / "run.zarr", program, PYTHONPATH=os.pathsep.join([str(toy.folder), str(FOLDER)])
    )
    assert ran.status == 1
    calls = f"4 calls of {FOLD}.commit_gdn_replayssm_fold_after_verify"
    line = f"gdnbench: not captured: {calls} ({known.COMMIT_OF_DRAFTS})"
    assert line in ran.err.splitlines()


@pytest.mark.parametrize(
    "summary",
    [
        None,
        [],
        {"uncaptured": 3},
        {"uncaptured": {"f": 3}},
        {"uncaptured": {"f": {"calls": True, "once": 0, "reason": "x"}}},
        {"uncaptured": {"f": {"calls": 1, "once": 0}}},
    ],
)
def test_a_summary_of_another_form(summary: object) -> None:
    assert uncaptured_calls(summary) == {}


def test_no_adapter_records_what_is_listed() -> None:
    targets = [target for adapter in load_adapters()[0] for target in adapter.targets]
    assert targets
    for entry in UNCAPTURED:
        for target in targets:
            if entry.in_module(target.module):
                assert not any(fnmatchcase(target.function, one) for one in entry.functions), (entry, target)


def test_globs_begin_with_a_package() -> None:
    for entry in select_uncaptured(()):
        assert re.fullmatch(r"\w+", entry.package), entry
        assert entry.framework in ("vllm", "sglang", "flashinfer", "fla", "flash_mla", "deep_gemm")
