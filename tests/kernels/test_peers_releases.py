# SPDX-License-Identifier: Apache-2.0
"""Releases of other packages before the newest: arguments that they lack, and calls that they do not take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode import fla as fla_decode
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.gdn_prefill import fla, flashinfer
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.peers import known_arguments
from tests.messages import wording


def given_to(call: Call) -> dict[str, Any]:
    return {**call.tensors, "qk": call.conventions["qk"]}


def test_arguments_that_a_function_does_not_have_are_left_out() -> None:
    def theirs(q: Tensor, chunk_size: int = 64, **kwargs: object) -> None:
        """Accepts and ignores anything else."""

    assert known_arguments(theirs, {"chunk_size": 32, "chunk_indices": None}) == {"chunk_size": 32}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that a stand-in for flash-linear-attention 0.4.2 is called with."""
    seen: dict[str, Any] = {}

    def chunk_gated_delta_rule(q: Tensor, v: Tensor, **kwargs: Any) -> tuple[Tensor, None]:
        seen.update(kwargs, q=q, v=v)
        return torch.zeros_like(v), None

    def fused_recurrent_gated_delta_rule(q: Tensor) -> None:
        raise AssertionError

    functions = SimpleNamespace(
        chunk_gated_delta_rule=chunk_gated_delta_rule,
        fused_recurrent_gated_delta_rule=fused_recurrent_gated_delta_rule,
        prepare_chunk_indices=lambda cu_seqlens, chunk_size: torch.zeros(1, 2),
    )
    fla._chunks_of.cache_clear()
    for module in (fla, fla_decode):
        monkeypatch.setattr(module, "fla_module", lambda name: functions)
    monkeypatch.setattr(fla, "fla_release", lambda: (0, 4, 2))
    return seen


def test_heads_are_repeated_for_a_release_that_takes_equally_many(given: dict[str, Any]) -> None:
    call = PREFILL.synth(seqlens=(5, 3), heads=(2, 4))
    fla.fla(**given_to(call))
    k = call.tensors["k"]
    assert torch.equal(given["k"][0], k[:, [0, 0, 1, 1]])
    assert given["q"].shape == given["v"].shape
    assert not {"chunk_size", "chunk_indices"} & given.keys()


def test_a_release_with_one_chunk_size(given: dict[str, Any]) -> None:
    call = PREFILL.synth(seqlens=(5, 3), heads=(2, 4))
    with pytest.raises(NotImplementedError, match=wording("kernels.fla-chunks", known=64, chunk_size=32)):
        fla.fla(**given_to(call), chunk_size=32)


def test_a_release_without_raw_gates(given: dict[str, Any]) -> None:
    call = DECODE.synth(heads=(1, 2), gate="raw")
    with pytest.raises(NotImplementedError, match=wording("kernels.fla-raw-gates")):
        fla_decode.fla(**given_to(call), gate="raw")


def test_a_release_without_context_parallelism(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk_gated_delta_rule(q: Tensor, cu_seqlens: Tensor) -> None:
        raise AssertionError

    module = SimpleNamespace(chunk_gated_delta_rule=chunk_gated_delta_rule)
    monkeypatch.setattr(flashinfer, "flashinfer_module", lambda name: module)
    call = PREFILL.synth(seqlens=(5, 3), heads=(1, 2), gate="linear")
    with pytest.raises(NotImplementedError, match=wording("kernels.use-cp-unknown")):
        flashinfer.flashinfer_cp(**given_to(call))
