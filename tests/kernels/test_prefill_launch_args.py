# SPDX-License-Identifier: Apache-2.0
"""Arguments that no kernel of gdn_prefill can take are refused by name before anything is launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.gdn_prefill.fused import sm100_fused
from gdnbench_kernels.gdn_prefill.sm90_cp import sm90, sm90_fused_cp, sm90_prepared
from gdnbench_kernels.gdn_prefill.sm90_fused import sm90_fused
from gdnbench_kernels.gdn_prefill.sm90_prepared_sources import sm90_prepared_sources
from gdnbench_kernels.gdn_prefill.sm90_segment_sources import sm90_cp_sources
from gdnbench_kernels.gdn_prefill.sm90_sources import sm90_sources
from gdnbench_kernels.gdn_prefill.synth import synth

KERNELS = [sm90, sm90_fused, sm90_fused_cp, sm90_prepared, sm100_fused]
CALL = synth(seqlens=(3, 5), heads=(1, 2), initial_state=True)


def refuses(kernel: Callable[..., Any], error: type[Exception], message: str, **given: Any) -> None:
    with active() as session, programs_simulated(), pytest.raises(error, match=message):
        kernel(**{**CALL.tensors, **given})
    assert session.reports == []


def states() -> Tensor:
    """Four states of both value heads."""
    return torch.zeros(4, 2, 128, 128)


@pytest.mark.parametrize("kernel", KERNELS)
class TestOutputs:
    def test_two_elements_of_one_address(self, kernel: Callable[..., Any]) -> None:
        o = torch.zeros(1, 2, 128).bfloat16().expand(8, 2, 128)
        refuses(kernel, ValueError, r"o has strides \[0, 128, 1\]: its elements share memory", o=o)

    def test_an_input_under_o(self, kernel: Callable[..., Any]) -> None:
        """A CTA would read values that another one has overwritten."""
        v = CALL.tensors["v"].clone()
        refuses(kernel, ValueError, "o shares memory with v; give it memory of its own", v=v, o=v)

    def test_states_that_overlap_in_part(self, kernel: Callable[..., Any]) -> None:
        """The final state of one sequence would be the initial state of another."""
        pool = states()
        message = "final_state shares memory with initial_state; give it memory of its own"
        refuses(kernel, ValueError, message, initial_state=pool[:2], final_state=pool[1:3])

    def test_states_of_another_dtype_in_place(self, kernel: Callable[..., Any]) -> None:
        pool = states()
        final = pool.view(torch.bfloat16).flatten()[: pool[:2].numel()].view(2, 2, 128, 128)
        message = "final_state shares memory with initial_state"
        refuses(kernel, ValueError, message, initial_state=pool[:2], final_state=final)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("scale", float("nan"), ValueError, "scale must be finite, in float32 too"),
        ("scale", 1e39, ValueError, "scale must be finite, in float32 too"),
        ("scale", torch.ones(()), TypeError, "scale is a Tensor; it must be a number"),
        ("cu_seqlens", torch.tensor(8).int(), ValueError, "cu_seqlens has 0 axes; it has one"),
        (
            "final_state_dtype",
            "float",
            NotImplementedError,
            "final_state as float32 or bfloat16, not as float",
        ),
    ],
)
def test_refused_by_name(
    kernel: Callable[..., Any], name: str, value: Any, error: type[Exception], message: str
) -> None:
    refuses(kernel, error, message, **{name: value})


@pytest.mark.parametrize("slices", [0, 3, 2.0, "2", None, [1]])
@pytest.mark.parametrize("kernel", [sm90_fused, sm90_fused_cp, sm90_prepared])
def test_slices_that_there_are_not(kernel: Callable[..., Any], slices: Any) -> None:
    refuses(kernel, ValueError, "slices is 1 or 2, not ", slices=slices)


@pytest.mark.parametrize("sources", [sm90_sources, sm90_cp_sources, sm90_prepared_sources])
def test_builds_of_slices_that_there_are_not(sources: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="slices is 1 or 2, not 3"):
        sources(slices=3)


@pytest.mark.parametrize("segment", [0, -64, 32, 96, 64.0, "64"])
@pytest.mark.parametrize("kernel", [sm90_fused_cp, sm90_prepared])
def test_segments_are_whole_chunks(kernel: Callable[..., Any], segment: Any) -> None:
    refuses(kernel, ValueError, f"a segment is a multiple of 64 tokens, not {segment!r}", segment=segment)
