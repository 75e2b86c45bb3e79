"""The kernel named `cute` of gdn_decode: one launch of `StateUpdate`, for SM90 and SM100.

Nothing is read back from the device and no shape depends on values, so a call can be captured into a CUDA
graph; with an output of the caller's it allocates nothing. It compiles for a number of tokens, value heads a
key head, dtypes, forms of the gate and of q and k, and a plan; the first call of each compiles or finds it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.arguments import multiprocessors
from gdnbench_kernels.compiling import Program
from gdnbench_kernels.contract import Launch
from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan, choose
from gdnbench_kernels.gdn_decode.launch_args import Arguments, arch_of, arguments
from gdnbench_kernels.gdn_decode.sources import Tap

__all__ = ["cute", "prepare"]

OPTIONAL: dict[str, Any] = {
    "num_accepted": None,
    "read_indices": None,
    "A_log": None,
    "dt_bias": None,
    "scale": None,
    "beta_max": 1.0,
    "gate": "log",
    "qk": "normalised",
    "o": None,
}
"""What `cute` takes for what a call leaves out."""


def cute(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor | None = None,
    read_indices: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    beta_max: float = 1.0,
    gate: str = "log",
    qk: str = "normalised",
    o: Tensor | None = None,
    arch: str | None = None,
    plan: DecodePlan | None = None,
    stages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Updates `state` [slots, Hv, 128, 128] in place and returns o [B, S, Hv, 128] bfloat16, the tensor of
    that name where given; rows of padding sequences are left as they are.

    `arch`: what to compile for, the device's own unless given. `plan`: how to deal the call, else `choose`.
    `stages`, if given, is filled with alpha_t, beta_t and delta_t by another build; normalised q and k are in
    no register, their norms are factors of sums.
    NotImplementedError for a call that the kernel is not written for, ValueError for a wrong one.
    """
    given = arguments(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        A_log=A_log,
        dt_bias=dt_bias,
        state=state,
        state_indices=state_indices,
        num_accepted=num_accepted,
        read_indices=read_indices,
        scale=scale,
        beta_max=beta_max,
        gate=gate,
        qk=qk,
        o=o,
    )
    if stages is not None:
        stages.update(tapped(given, "dump", stages_of(given), plan, arch))
    elif given.batch:
        _program(given, plan, arch)(*given.given)
    return given.finish()


def tapped(
    given: Arguments,
    tap: Tap,
    shown: dict[str, Tensor],
    plan: DecodePlan | None = None,
    arch: str | None = None,
) -> dict[str, Tensor]:
    """The call by a build with a tap: what it shows, in the tensors `shown`."""
    if given.batch:
        program = given.compiled(plan or plan_of(given), arch or arch_of(given.device), tap)
        program(*given.tapped(**shown))
    return shown


def stages_of(given: Arguments) -> dict[str, Tensor]:
    """Stages to be filled; NaN where no one will."""
    v = given.v
    shapes = {"alpha_t": v.shape[:3], "beta_t": v.shape[:3], "delta_t": v.shape}
    return {
        name: torch.full(shape, torch.nan, dtype=torch.float32, device=v.device)
        for name, shape in shapes.items()
    }


def prepare(*, plan: DecodePlan | None = None, arch: str | None = None, **call: Any) -> Launch:
    """A launch of the call, whose arguments are those of `cute`: checked, compiled, loaded and packed. The
    pool and o are as they were. Rows of q, k or v that are not contiguous and aligned, and inputs [B] or [Hv]
    that are not contiguous, are copied here, once: what is written to them later no launch sees.

    NotImplementedError besides for an o that the kernel cannot write to, which each call would copy.
    """
    given = arguments(**{**OPTIONAL, **call})
    if given.o is not call.get("o"):
        raise NotImplementedError("a launch writes to o itself: give a contiguous o, aligned to 16 bytes")
    if not given.batch:
        return nothing
    program = _program(given, plan, arch)
    if given.device.type == "cuda":
        # A program is loaded when it is first launched, which no graph could capture: of padding alone,
        # which touches nothing.
        program(*given.idle)
    return program.prepared(*given.given)


def nothing() -> None:
    """The launch of a call of no sequences."""


def _program(given: Arguments, plan: DecodePlan | None, arch: str | None) -> Program:
    return given.compiled(plan or plan_of(given), arch or arch_of(given.device))


def plan_of(given: Arguments) -> DecodePlan:
    """How the call is dealt unless it says so."""
    return choose(
        given.batch, given.value_heads, given.state_dtype, given.tokens, multiprocessors(given.device)
    )
