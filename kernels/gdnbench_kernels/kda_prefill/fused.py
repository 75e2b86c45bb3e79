"""The kernel named `sm100_fused` of kda_prefill: one launch, without intermediates in global memory.

The host reads nothing back from the device and no shape depends on values, so a call can be captured in a
CUDA graph after a first call has loaded the program.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.gdn_prefill.fused import launch_fused
from gdnbench_kernels.gdn_prefill.launch_args import refuse_sizes
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.kda_prefill.sources import fused_source
from gdnbench_kernels.params import takes_params

CONVERTED = ("A_log", "dt_bias", "lower_bound", "gate", "beta_form", "state_layout", "qk")
"""Arguments of conventions that the kernel does not take."""


@takes_params(KdaPrefillParams, without=(*CONVERTED, "chunk_size"))
def sm100_fused(
    params: KdaPrefillParams,
    *,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name if they are given.

    g is log-space and beta the step size, both float32; other floating dtypes are converted. The kernel has
    chunks of 64 tokens whatever the call's chunk_size, which only stages show. Raises NotImplementedError for
    sizes and dtypes that the kernel does not take, ValueError for what no kernel takes.
    """
    refuse_sizes(params)
    return launch_fused(params, fused_source, o, final_state, by_channel=True)
