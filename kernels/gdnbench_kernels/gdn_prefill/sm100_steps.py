"""The steps of `sm100`, each runnable alone: its launches, with chunk_uw split into three by builds with
taps.

`form_a` launches chunk_uw and returns g_cu and A; `invert` passes it an A and returns its Ai; `form_uw`
passes it an Ai and returns U and W. g_cu has no tap: chunk_uw sums the gates in each step.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.launch_args import (
    FLOAT32,
    Outputs,
    check_inputs,
    contiguous_aligned,
    refuse,
)
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm100 import (
    Workspace,
    chunk_metadata,
    chunk_output,
    chunk_state,
    chunk_uw,
)
from gdnbench_kernels.gdn_prefill.sources import Tap
from gdnbench_kernels.params import from_call

Call = Mapping[str, Any]


def form_a(**call: Any) -> dict[str, Tensor]:
    made = _Made.prepare(call)
    found = made.uw("dump", a=made.square(), ai=made.square())
    return {name: found[name] for name in ("g_cu", "A")}


def invert(*, stages: Mapping[str, Tensor], **call: Any) -> dict[str, Tensor]:
    made = _Made.prepare(call)
    return {"Ai": made.uw("invert", a=contiguous_aligned(stages["A"].to(FLOAT32)), ai=made.square())["Ai"]}


def form_uw(*, stages: Mapping[str, Tensor], **call: Any) -> dict[str, Tensor]:
    made = _Made.prepare(call)
    found = made.uw("inject_ai", ai=contiguous_aligned(stages["Ai"].to(FLOAT32)))
    return {name: found[name] for name in ("U", "W")}


def carry_state(*, stages: Mapping[str, Tensor], **call: Any) -> dict[str, Tensor]:
    made = _Made.prepare(call)
    given = made.params.initial_state
    first = None if given is None else contiguous_aligned(given)
    outputs = Outputs.allocate(made.params)
    space = made.space
    if made.tokens:
        chunk_state(
            made.k,
            contiguous_aligned(stages["U"]),
            contiguous_aligned(stages["W"]),
            contiguous_aligned(stages["g_cu"]),
            made.cu_seqlens,
            space.tables,
            initial_state=first,
            h=space.h,
            v_new=space.v_new,
            final_state=outputs.final_state,
        )
    else:
        outputs.leave_states(first)
    found = {"h": space.h, "V_new": space.v_new}
    final = outputs.finish().get("final_state")
    return found if final is None else {**found, "final_state": final}


def read_out(*, stages: Mapping[str, Tensor], **call: Any) -> dict[str, Tensor]:
    made = _Made.prepare(call)
    params = made.params
    o = torch.empty(params.v.shape, dtype=params.v.dtype, device=params.v.device)
    if made.tokens:
        chunk_output(
            contiguous_aligned(params.q),
            made.k,
            contiguous_aligned(stages["V_new"]),
            contiguous_aligned(stages["h"]),
            contiguous_aligned(stages["g_cu"]),
            made.cu_seqlens,
            made.space.tables,
            o=o,
            scale=default_scale(params.scale, HEAD_DIM),
        )
    return {"o": o}


@dataclass(frozen=True, slots=True)
class _Made:
    """A call in the form of the launches, with the tensors that they write."""

    params: PrefillParams
    k: Tensor
    cu_seqlens: Tensor
    space: Workspace

    @classmethod
    def prepare(cls, call: Call) -> _Made:
        params = from_call(PrefillParams, call)
        refuse(params)
        check_inputs(params)
        v, cu_seqlens = params.v, params.cu_seqlens
        space = Workspace.allocate(len(v), len(cu_seqlens) - 1, v.shape[1], v.device)
        cu_seqlens = contiguous_aligned(cu_seqlens)
        if len(v):
            chunk_metadata(cu_seqlens, space.tables)
        return cls(params, contiguous_aligned(params.k), cu_seqlens, space)

    @property
    def tokens(self) -> int:
        return len(self.params.v)

    def square(self) -> Tensor:
        v = self.params.v
        shape = (len(self.space.h), v.shape[1], CHUNK, CHUNK)
        return torch.empty(shape, dtype=FLOAT32, device=v.device)

    def uw(self, tap: Tap, a: Tensor | None = None, ai: Tensor | None = None) -> dict[str, Tensor]:
        """The outputs of chunk_uw, by the build with that tap."""
        space, params = self.space, self.params
        if self.tokens:
            chunk_uw(
                self.k,
                contiguous_aligned(params.v),
                contiguous_aligned(params.g.to(FLOAT32)),
                contiguous_aligned(params.beta.to(FLOAT32)),
                self.cu_seqlens,
                space.tables,
                g_cu=space.g_cu,
                u=space.u,
                w=space.w,
                a=a,
                ai=ai,
                tap=tap,
                beta_max=params.beta_max,
            )
        found = {"g_cu": space.g_cu, "U": space.u, "W": space.w}
        return {**found, **{name: x for name, x in (("A", a), ("Ai", ai)) if x is not None}}
