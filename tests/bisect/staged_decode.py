# SPDX-License-Identifier: Apache-2.0
"""Decode kernels made of torch's steps, with a fault in a known one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from gdnbench_kernels.contract import Step
from gdnbench_kernels.gdn_decode.steps import TORCH_STEPS, torch_steps

Made = dict[str, Tensor]
TOKEN, HEAD, ROW = 2, 1, 3
"""Of the one element of delta_t that is spoiled, in the first sequence whose first value is marked."""
MARK = 3.0
CONVENTIONS = {"gate": ("log", "linear", "raw"), "qk": ("normalised", "raw")}


def _rounded(call: dict[str, Any], made: Made) -> None:
    made["beta_t"] = made["beta_t"].bfloat16().float()


def _element(call: dict[str, Any], made: Made) -> None:
    (marked,) = (call["v"][:, 0, 0, 0] == MARK).nonzero().flatten().tolist()
    made["delta_t"] = made["delta_t"].clone()
    made["delta_t"][marked, TOKEN, HEAD, ROW] += 0.01


def _state(call: dict[str, Any], made: Made) -> None:
    made["state"] *= 1.001


def _output(call: dict[str, Any], made: Made) -> None:
    made["o"] *= 1.1


def broken(**spoils: Callable[[dict[str, Any], Made], None]) -> Any:
    """torch's steps, with what `spoils` does to what a step gives."""

    def stepped(step: Step) -> Step:
        def run(**call: Any) -> Made:
            made: Made = dict(getattr(torch_steps, step.name)(**call))
            if step.name in spoils:
                spoils[step.name](call, made)
            return made

        return replace(step, target=run)

    steps = tuple(stepped(step) for step in TORCH_STEPS)

    def kernel(*, stages: Made | None = None, **call: Any) -> Made:
        made: Made = {}
        for step in steps:
            taken = {"stages": {name: made[name] for name in step.takes}} if step.takes else {}
            made |= step.target(**call, **taken)  # type: ignore[operator]
        if stages is not None:
            stages.update({name: x for name, x in made.items() if name.endswith("_t")})
        return {name: x for name, x in made.items() if not name.endswith("_t")}

    kernel.steps = steps  # type: ignore[attr-defined]
    kernel.conventions = CONVENTIONS  # type: ignore[attr-defined]
    return kernel


right = broken()
beta = broken(gates=_rounded)
delta, state, o = broken(update=_element), broken(update=_state), broken(update=_output)
