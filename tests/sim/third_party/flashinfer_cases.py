# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's kernels for Gated DeltaNet and Kimi Delta Attention, compiled for sm_100a from fake tensors
and run on the simulator.

The package's own `__init__` loads its CUDA libraries. The kernels need none of them, so the parents of their
modules are stood in for by empty packages with the real paths, in this process only.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from types import ModuleType
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.cute.runtime as cute_runtime
import torch

from gdnbench import sim

NUMERIC: dict[torch.dtype, Any] = {
    torch.bfloat16: cutlass.BFloat16,
    torch.float32: cutlass.Float32,
    torch.int32: cutlass.Int32,
}
NULL_SLOT = -1


def _kernels(module: str, package: str = "gdn_kernels") -> ModuleType:
    """`flashinfer.<package>.<module>` without what its parents import."""
    _stand_in()
    return importlib.import_module(f"flashinfer.{package}.{module}")


@cache
def _stand_in() -> None:
    spec = importlib.util.find_spec("flashinfer")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (root,) = spec.submodule_search_locations
    for name, folder in (
        ("flashinfer", ""),
        ("flashinfer.gdn_kernels", "gdn_kernels"),
        ("flashinfer.kda_kernels", "kda_kernels"),
        ("flashinfer.cute_dsl", "cute_dsl"),
        ("flashinfer.jit", "jit"),
    ):
        package = ModuleType(name)
        package.__path__ = [f"{root}/{folder}"]
        sys.modules[name] = package
    # Its compile cache on disk, which the modules import by name; compiling here goes past it.
    stored = ModuleType("flashinfer.jit.cute_dsl_core")
    stored.build_and_load_cute_dsl_kernel = None  # type: ignore[attr-defined]
    sys.modules[stored.__name__] = stored


def _fake(tensor: torch.Tensor) -> Any:
    """`tensor` with the first extent unknown and 16-byte alignment: what the package compiles for."""
    return cute_runtime.make_fake_tensor(
        NUMERIC[tensor.dtype], (cute.sym_int(), *tensor.shape[1:]), tensor.stride(), assumed_align=16
    )


def fold(
    state: torch.Tensor,
    rawv: torch.Tensor,
    rawk: torch.Tensor,
    log_g: torch.Tensor,
    beta: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor,
    layers: int,
    engine: str = "compiled",
) -> object:
    """Commits the accepted tokens of a speculative decode to the states: tcgen05 `kind::tf32` for S k."""
    module = _kernels("gdn_replayssm_spec_fold_tcgen")
    tensors = (state, rawv, rawk, log_g, beta, slots, accepted)
    compiled = sim.compile(
        module._launch_gdn_replayssm_fold_tcgen,
        *map(_fake, tensors),
        NUM_LAYERS=layers,
        H=rawk.shape[1],
        HV=state.shape[1],
        NULL_BLOCK_ID=NULL_SLOT,
        USE_PACKED=slots.shape[0] > 1,
        stream=cute_runtime.make_fake_stream(),
    )
    return sim.launch(compiled, *tensors, engine=engine)


def decode(
    state: torch.Tensor,
    a_log: torch.Tensor,
    a: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    scale: float,
) -> object:
    """One decode step of every sequence; the state of sequence and head is transposed, [V, K]."""
    module = _kernels("gdn_decode_pretranspose")
    batch = q.shape[0]
    indices = torch.zeros(batch, dtype=torch.int32)
    offsets = torch.zeros(batch + 1, dtype=torch.int32)
    tensors = (state, a_log, a, dt_bias, q, k, v, b, out, indices, indices.clone(), offsets)
    compiled = sim.compile(
        module.run_gdn_decode_kernel_small_batch_pretranspose,
        *map(_fake, tensors),
        softplus_beta=1.0,
        softplus_threshold=20.0,
        scale=scale,
        HV=v.shape[2],
        T=1,
        H=q.shape[2],
        K=q.shape[3],
        V=v.shape[3],
        use_initial_state=True,
        use_qk_l2norm=True,
        is_varlen=False,
        use_pool_indexing=False,
        stream=cute_runtime.make_fake_stream(),
    )
    return sim.launch(compiled, *tensors)


def kda_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    dt_bias: torch.Tensor,
    a_log: torch.Tensor,
    lower_bound: float,
    out: torch.Tensor,
    state: torch.Tensor,
    sms: int,
) -> object:
    """Kimi Delta Attention by the package's own function, which compiles two kernels and asks for the number
    of multiprocessors: the grids of its launches. The state is [V, K]."""
    module = _kernels("kda_chunked_bt16_small_bh", "kda_kernels")
    with sim.active(sms=sms) as session:
        module.chunk_kda_fwd(
            *(q, k, v, g, beta, dt_bias, a_log),
            gate_scale=lower_bound,
            gate_lower_bound=True,
            return_state=True,
            transpose_state=True,
            output=out,
            state_output=state,
        )
    return [launch.grid for report in session.reports for launch in report.launches]


def kda_packed(
    mode: str,
    lengths: list[int],
    heads: int,
    out: torch.Tensor,
    state: torch.Tensor,
    out_wanted: torch.Tensor,
    state_wanted: torch.Tensor,
) -> object:
    """Kimi Delta Attention by tcgen05 on inputs that the package makes, with the package's own reference, as
    its `verify` compares them. The host code encodes tensor maps and asserts that this succeeds."""
    module = _kernels("kda_chunked_bt16", "kda_kernels")
    module._device_sm_count = lambda device: 148  # asked of torch.cuda
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.manual_seed(0)
    kinds = (cutlass.BFloat16, cutlass.Float32)
    inputs = module._make_inputs(
        len(lengths), heads, 0, *kinds, "cpu", random_state=True, seq_lens=tuple(lengths)
    )
    *tokens, a_log, dt_bias, beta, starts, before = inputs
    with sim.active() as session:
        compiled = module.compile(mode=mode)
        size = compiled.workspace_size(starts, heads)
        workspace = torch.empty(size, dtype=torch.uint8) if size else None
        compiled(*tokens, a_log, dt_bias, beta, starts, before, out, state, workspace, 0)
    exact, after = module.kda_chunked_mma_reference(
        *(tensor.permute(0, 2, 1, 3) for tensor in tokens),
        beta.permute(0, 2, 1),
        module._state_vk_to_kv(before),
        mma_dtype=torch.bfloat16,
        a_log=a_log,
        dt_bias=dt_bias,
        safe_gate=True,
        cu_seqlens=starts,
        scale=module.DEFAULT_SCALE,
    )
    out_wanted.copy_(exact.permute(0, 2, 1, 3))
    state_wanted.copy_(module._state_kv_to_vk(after))
    return [launch.grid for report in session.reports for launch in report.launches]
