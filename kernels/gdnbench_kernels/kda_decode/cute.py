"""The kernel named `cute` of kda_decode: one launch of `ChannelUpdate`, for SM90 and SM100.

As with gdn_decode's, a call can be captured into a CUDA graph, and with the caller's output and rows of q, k,
v and g that are contiguous and aligned it allocates nothing. The kernel is compiled per number of tokens,
value heads per key head, dtypes, conventions, presence of A_log and dt_bias, and plan.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_decode.launch import launch, launch_tapped, prepared_launch
from gdnbench_kernels.kda_decode.decode_plan import ChannelPlan
from gdnbench_kernels.kda_decode.launch_args import arguments
from gdnbench_kernels.kda_decode.params import KdaDecodeParams
from gdnbench_kernels.params import takes_params

__all__ = ["cute", "prepare"]

takes_call = takes_params(KdaDecodeParams, without=("state_layout",))


@takes_call
def cute(
    params: KdaDecodeParams,
    *,
    o: Tensor | None = None,
    arch: str | None = None,
    plan: ChannelPlan | None = None,
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
        stages.update(launch_tapped(given, "dump", given.stage_tensors(), plan, arch))
    else:
        launch(given, plan, arch)
    return given.finish()


@takes_call
def prepare(
    params: KdaDecodeParams,
    *,
    o: Tensor | None = None,
    plan: ChannelPlan | None = None,
    arch: str | None = None,
) -> Launch:
    """A launch of the call, whose arguments are those of `cute`: checked, compiled, loaded and packed. The
    pool and o are not changed. Inputs that the kernel cannot take as they are, as `launch_args` says, are
    copied once, here; launches do not see later writes to them.

    Also raises NotImplementedError for an o that the kernel cannot write directly, because each call would
    copy it.
    """
    return prepared_launch(arguments(params, o), o, plan, arch)
