# SPDX-License-Identifier: Apache-2.0
"""Kernels made of torch's steps, with faults whose place is known: head 1 of the chunk whose first value is
marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.chunks import plan_chunks
from gdnbench_kernels.contract import Step
from gdnbench_kernels.gdn_prefill import steps as gdn
from gdnbench_kernels.kda_prefill import steps as kda

HEAD = 1
Spoil = Callable[[Mapping[str, Any], dict[str, Tensor]], None]


def size_of(call: Mapping[str, Any]) -> int:
    """The default chunk size of the call's operation: kda_prefill has a gate for each channel."""
    return 16 if call["g"].dim() == 3 else 64


def first_token(call: Mapping[str, Any]) -> int:
    """Of the spoiled chunk."""
    plan = plan_chunks(call["cu_seqlens"], size_of(call))
    return int(plan.start[_spoiled(call)])


def _spoiled(call: Mapping[str, Any]) -> int:
    """The chunk whose first token's values are marked: v[t, 0, 0] is 3, however the call is cut."""
    plan = plan_chunks(call["cu_seqlens"], size_of(call))
    marked = call["v"][plan.start, 0, 0] == 3
    (chunk,) = torch.nonzero(marked).flatten().tolist()
    return int(chunk)


def element(name: str) -> Spoil:
    """One element of a stage is 0.5 off: row, token or state row 3 of the spoiled chunk."""

    def spoil(call: Mapping[str, Any], made: dict[str, Tensor]) -> None:
        chunk, tensor = _spoiled(call), made[name].clone()
        if name in ("g_cu", "o"):
            at = tensor[first_token(call) + 3, HEAD : HEAD + 1]
        elif name in ("U", "W", "V_new"):
            at = tensor[size_of(call) * chunk + 3, HEAD, 5:6]
        elif name == "h":
            at = tensor[chunk, HEAD, 3, 5:6]
        else:
            at = tensor[chunk, HEAD, 3, 1:2]
        at += 0.5 if name != "g_cu" else -0.5
        made[name] = tensor

    return spoil


def rows(name: str) -> Spoil:
    """All of the spoiled chunk and head is 3 % off."""

    def spoil(call: Mapping[str, Any], made: dict[str, Tensor]) -> None:
        chunk, size, tensor = _spoiled(call), size_of(call), made[name].clone()
        each = size if name in ("U", "W", "V_new") else 1
        part = slice(each * chunk, each * chunk + each)
        tensor[part, HEAD] *= 1.03
        made[name] = tensor

    return spoil


Before = Callable[[dict[str, Any]], None]


def wrong_keys(call: dict[str, Any]) -> None:
    """What the spoiled chunk hands on is made of other keys: a step that carries states uses keys for nothing
    else."""
    k, start = call["k"].clone(), first_token(call)
    k[start : start + size_of(call), HEAD // 2, :4] *= -1
    call["k"] = k


def broken(before: Mapping[str, Before] | None = None, of: Any = gdn, **spoils: Spoil) -> Any:
    """torch's steps of an operation, with what `before` does to the call that a step gets, and `spoils` to
    what it gives."""

    def stepped(step: Step) -> Step:
        function = getattr(of.torch_steps, step.name)

        def run(**call: Any) -> dict[str, Tensor]:
            if before is not None and step.name in before:
                before[step.name](call)
            made = function(**call)
            for name in step.gives:
                if name in spoils:
                    spoils[name](call, made)
            return dict(made)

        return replace(step, target=run)

    steps = tuple(stepped(step) for step in of.TORCH_STEPS)

    def kernel(*, stages: dict[str, Tensor] | None = None, **call: Any) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        for step in steps:
            taken = {"stages": {name: made[name] for name in step.takes}} if step.takes else {}
            made |= step.target(**call, **taken)  # type: ignore[operator]
        if stages is not None:
            stages.update({name: x for name, x in made.items() if name not in ("o", "final_state")})
        return {name: x for name, x in made.items() if name in ("o", "final_state")}

    kernel.steps = steps  # type: ignore[attr-defined]
    return kernel


right = broken()
g_cu, A, Ai, U, W, h, V_new, P, o = (
    broken(**{name: element(name)}) for name in ("g_cu", "A", "Ai", "U", "W", "h", "V_new", "P", "o")
)
carried = broken({"scan": wrong_keys})
kda_right, kda_carried = broken(of=kda), broken({"scan": wrong_keys}, of=kda)
kda_A, kda_W, kda_P = (broken(of=kda, **{name: element(name)}) for name in ("A", "W", "P"))
two = broken(U=rows("U"), V_new=element("V_new"))


def half_gates(call: Mapping[str, Any], made: dict[str, Tensor]) -> None:
    """Gates summed in fp16, which is over the bound of g_cu, and does not show in outputs in bf16."""
    made["g_cu"] = made["g_cu"].half().float()


gates_and_u = broken(g_cu=half_gates, U=rows("U"))


def without_steps(*, stages: dict[str, Tensor] | None = None, **call: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = W(stages=stages, **call)
    return found


def gates_and_u_shown(*, stages: dict[str, Tensor] | None = None, **call: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = gates_and_u(stages=stages, **call)
    return found


def without_stages(q: Tensor, k: Tensor, v: Tensor, o: Tensor) -> None:
    o.zero_()
