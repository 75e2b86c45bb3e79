# SPDX-License-Identifier: Apache-2.0
"""Chains of decode calls, each on the state that the one before it left, and kernels that spoil them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdnbench.record import RecordDraft
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.contract import OPERATION
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent
from gdnbench_kernels.run import run_kernel

LAYERS = (0, 1)
MARK = 3.0
"""v[0, 0, 0, 0] of the call that a kernel is to spoil; no other value is that."""
HEADS, DIM = 2, 16


def chain(
    path: Path, steps: int, mark: tuple[int, int] | None = None, log_gate: float = -1e-3, ahead: int = 0
) -> Path:
    """`steps` calls of two layers in turn, of two sequences whose states are slots 0 and 2 of three. Gates
    are slow: what a call does to a state stays. `mark`: (layer, step) of the call whose values are marked.
    `ahead`: calls of another layer that are stored before them."""
    states = {layer: torch.zeros(3, HEADS, DIM, DIM) for layer in LAYERS}
    drafts: list[RecordDraft] = []
    for number in range(ahead):
        small = synthesise("gdn_decode", batch=1, heads=(1, 1), head_dim=(8, 8), seed=number)
        one = draft("gdn_decode", small, index=len(drafts))
        drafts.append(replace(one, info=replace(one.info, layer="other", layer_index=None)))
    for step in range(steps):
        for layer in LAYERS:
            made = synthesise(
                "gdn_decode",
                batch=2,
                heads=(1, HEADS),
                head_dim=(DIM, DIM),
                slots=3,
                seed=1000 * layer + step,
            )
            tensors = dict(made.tensors)
            tensors["state_indices"] = torch.tensor([[0], [2]], dtype=torch.int32)
            tensors["state"] = states[layer].clone()
            tensors["g"] = torch.full_like(tensors["g"], log_gate)
            tensors["beta"] = 0.3 + 0.4 * torch.rand(
                tensors["beta"].shape, generator=torch.Generator().manual_seed(step)
            )
            tensors["v"] = tensors["v"].clone()
            tensors["v"][0, 0, 0, 0] = MARK if (layer, step) == mark else 0.5
            call = Call(tensors, made.scalars, made.conventions)
            OPERATION.validate(call)
            states[layer] = run_kernel(OPERATION, "torch", call)["state"]
            one = draft("gdn_decode", call, index=len(drafts))
            info = replace(one.info, layer=f"layers.{layer}", layer_index=layer, step=step)
            drafts.append(replace(one, info=info))
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write("0", drafts)
    return path


def _kernel(
    change: Callable[[dict[str, Any]], None] | None = None,
    spoil: Callable[[dict[str, Any], Tensor, Tensor], None] | None = None,
) -> Callable[..., dict[str, Tensor]]:
    """torch's kernel, its call changed beforehand, or what it left (state before, o) spoiled afterwards."""

    def kernel(**given: Any) -> dict[str, Tensor]:
        call = {name: x for name, x in given.items() if name not in ("state_layout", "offsets", "o")}
        before = call["state"].clone()
        if change is not None:
            change(call)
        found = torch_recurrent(**call)
        if spoil is not None:
            spoil(call, before, found["o"])
        return found

    return kernel


def _marked(call: dict[str, Any]) -> bool:
    return bool(call["v"][0, 0, 0, 0] == MARK)


def _round_beta(call: dict[str, Any]) -> None:
    call["beta"] = call["beta"].bfloat16().float()


def _spoil_state(call: dict[str, Any], before: Tensor, o: Tensor) -> None:
    if _marked(call):
        call["state"][2, 1] *= 1.01


def _spoil_output(call: dict[str, Any], before: Tensor, o: Tensor) -> None:
    if _marked(call):
        o[1, 0, 1] *= 1.1


def _leave_unwritten(call: dict[str, Any], before: Tensor, o: Tensor) -> None:
    if _marked(call):
        call["state"][2] = before[2]


def _lean(call: dict[str, Any], before: Tensor, o: Tensor) -> None:
    bits = call["state"].view(torch.int32)
    bits &= -2


right = _kernel()
rounds_beta = _kernel(_round_beta)
spoils_state = _kernel(spoil=_spoil_state)
spoils_output = _kernel(spoil=_spoil_output)
leaves_unwritten = _kernel(spoil=_leave_unwritten)
leans = _kernel(spoil=_lean)
