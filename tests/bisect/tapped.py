# SPDX-License-Identifier: Apache-2.0
"""A host function of an engine, with taps: it hands its stages from one function to the next, as vLLM's does.

Blocks of 16 x 16 on the diagonal are inverted by Newton-Schulz rounds with operands in fp16. Three rounds
would do in exact arithmetic; the fourth removes what rounding left. Each sum of gates is one ULP off.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gdnbench.replay.taps import tap
from gdnbench_kernels.chunks import plan_chunks
from gdnbench_kernels.gdn_prefill.steps import torch_steps

BLOCK = 16


def inverse(a: Tensor, rounds: int) -> Tensor:
    """(I + a)^-1 [c, Hv, C, C] of strictly lower `a`."""
    size, a = a.shape[-1], a.float()
    found = torch.eye(size).expand(a.shape).clone()
    for row in range(0, size, BLOCK):
        here = slice(row, row + BLOCK)
        one = torch.eye(BLOCK)
        m = (one + a[..., here, here]).half()
        x = one - a[..., here, here]
        for _ in range(rounds):
            low = x.half().float()
            x = 2 * x - (low @ m.float()).half().float() @ low
        found[..., here, here] = x
        before = slice(0, row)
        found[..., here, before] = -x @ (a[..., here, before] @ found[..., before, before])
    return found


def form_uw(call: dict[str, Any], g_cu: Tensor, u: Tensor, w: Tensor, rounds: int) -> None:
    g_cu.copy_(torch.nextafter(torch_steps.sum_gates(**call)["g_cu"], torch.tensor(-torch.inf)))
    wide = {**call, "v": call["v"].float(), "k": call["k"].float()}
    a = torch_steps.form_a(**wide, stages={"g_cu": g_cu})["A"].half()
    made = torch_steps.form_uw(**call, stages={"g_cu": g_cu, "Ai": inverse(a, rounds)})
    u.copy_(made["U"])
    w.copy_(made["W"])


def advance(call: dict[str, Any], g_cu: Tensor, u: Tensor, w: Tensor) -> dict[str, Tensor]:
    return dict(torch_steps.scan(**call, stages={"g_cu": g_cu, "U": u, "W": w}))


def prefill(rounds: int, call: dict[str, Any]) -> dict[str, Tensor]:
    v, k = call["v"], call["k"]
    rows = 64 * plan_chunks(call["cu_seqlens"], 64).bound
    g_cu = torch.empty(v.shape[:2])
    u, w = (torch.empty(rows, v.shape[1], x.shape[2], dtype=v.dtype) for x in (v, k))
    form_uw(call, g_cu, u, w, rounds)
    made = advance(call, g_cu, u, w)
    p = torch_steps.form_p(**call, stages={"g_cu": g_cu})["P"]
    given = {"g_cu": g_cu, "h": made["h"], "V_new": made["V_new"], "P": p}
    return {"o": torch_steps.read_out(**call, stages=given)["o"], "final_state": made["final_state"]}


def four(**call: Any) -> dict[str, Tensor]:
    return prefill(4, call)


def three(**call: Any) -> dict[str, Tensor]:
    return prefill(3, call)


three.taps = four.taps = (tap(__name__, "form_uw", g_cu=1, U=2, W=3),)  # type: ignore[attr-defined]
