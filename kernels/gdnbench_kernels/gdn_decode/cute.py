"""The kernel named `cute` of gdn_decode: one launch of `StateUpdate`, for SM90 and SM100.

The host reads nothing back from the device and no shape depends on values, so a call can be captured into a
CUDA graph; with the caller's output it allocates nothing. The kernel is compiled per number of tokens, value
heads per key head, dtypes, conventions of the gate, q and k, and plan; the first such call compiles it or
finds it in the cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.compiling import Program
from gdnbench_kernels.contract import Launch
from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan, default_plan
from gdnbench_kernels.gdn_decode.launch_args import Arguments, arch_of, arguments
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.gdn_decode.sources import Tap
from gdnbench_kernels.gpu import multiprocessors
from gdnbench_kernels.params import takes_params

__all__ = ["cute", "prepare"]

takes_call = takes_params(DecodeParams, without=("state_layout",))


@takes_call
def cute(
    params: DecodeParams,
    *,
    o: Tensor | None = None,
    arch: str | None = None,
    plan: DecodePlan | None = None,
    stages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, 128, 128] in place and return o [B, S, Hv, 128] bfloat16, the caller's
    tensor if given; rows of padding sequences stay unchanged.

    `arch` is the target; None takes the device's. `plan` is the kernel's plan; None takes `default_plan`.
    `stages`, if given, is filled with alpha_t, beta_t and delta_t by another build. It has no normalised q
    and k, because the kernel never forms them: their norms are factors of sums. Raises NotImplementedError
    for a call that the kernel does not support, ValueError for an invalid one.
    """
    given = arguments(params, o)
    if stages is not None:
        stages.update(run_tapped(given, "dump", stages_of(given), plan, arch))
    elif given.batch:
        _program(given, plan, arch)(*given.given)
    return given.finish()


def run_tapped(
    given: Arguments,
    tap: Tap,
    shown: dict[str, Tensor],
    plan: DecodePlan | None = None,
    arch: str | None = None,
) -> dict[str, Tensor]:
    """Run the call by a build with a tap, which writes to or reads from the tensors `shown`."""
    if given.batch:
        target = arch or arch_of(given.device)
        program = given.compiled(plan or plan_of(given, target), target, tap)
        program(*given.tapped(**shown))
    return shown


def stages_of(given: Arguments) -> dict[str, Tensor]:
    """Tensors for the stages, filled with NaN."""
    v = given.v
    shapes = {"alpha_t": v.shape[:3], "beta_t": v.shape[:3], "delta_t": v.shape}
    return {
        name: torch.full(shape, torch.nan, dtype=torch.float32, device=v.device)
        for name, shape in shapes.items()
    }


@takes_call
def prepare(
    params: DecodeParams,
    *,
    o: Tensor | None = None,
    plan: DecodePlan | None = None,
    arch: str | None = None,
) -> Launch:
    """A launch of the call, whose arguments are those of `cute`: checked, compiled, loaded and packed. The
    pool and o are not changed. Rows of q, k or v that are not contiguous and aligned, and inputs [B] or [Hv]
    that are not contiguous, are copied once, here; launches do not see later writes to them.

    Also raises NotImplementedError for an o that the kernel cannot write directly, because each call would
    copy it.
    """
    given = arguments(params, o)
    if given.o is not o:
        raise NotImplementedError("a launch writes to o itself: give a contiguous o, aligned to 16 bytes")
    if not given.batch:
        return launch_nothing
    program = _program(given, plan, arch)
    if given.device.type == "cuda":
        # Launch once with padding only, which accesses no state: the first launch loads the program, which a
        # graph cannot capture.
        program(*given.idle)
    return program.prepared(*given.given)


def launch_nothing() -> None:
    """The launch of a call of no sequences."""


def _program(given: Arguments, plan: DecodePlan | None, arch: str | None) -> Program:
    target = arch or arch_of(given.device)
    return given.compiled(plan or plan_of(given, target), target)


def plan_of(given: Arguments, arch: str) -> DecodePlan:
    """The default plan of the call on a GPU that code for `arch` runs on."""
    sms = multiprocessors(given.device, arch)
    return default_plan(given.batch, given.value_heads, given.state_dtype, given.tokens, sms)
