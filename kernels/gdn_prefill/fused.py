"""The kernel named `sm100_fused` of gdn_prefill: one launch, which hands nothing on through memory.

What chunk_fused.py computes needs no table of chunks and no workspace: every CTA walks through one sequence.
As with `sm100` nothing is read back from the device and no shape depends on values.
"""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.checks import dtype_name
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm100 import (
    BFLOAT16,
    FLOAT32,
    STATES,
    _check_dtype,
    _check_inputs,
    _compiled,
    _held,
    _Output,
    _refuse,
)
from gdnbench_kernels.gdn_prefill.sources import fused_source
from gdnbench_kernels.gdn_prefill.torch_chunked import final_dtype


def sm100_fused(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    o: Tensor | None = None,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    scale: float | None = None,
    chunk_size: int = CHUNK,
    output_final_state: bool = True,
    final_state_dtype: str | None = None,
    beta_max: float = 1.0,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name where given.

    As `sm100`, without stages.
    """
    _refuse(q, k, v, chunk_size, beta_max)
    _check_inputs(q, k, v, g, beta, cu_seqlens, initial_state)
    if final_state is not None and not output_final_state:
        raise ValueError("final_state is given, which output_final_state = False says not to fill")
    heads, value_heads, sequences = k.shape[1], v.shape[1], len(cu_seqlens) - 1
    out = _Output.of("o", o, v.shape, BFLOAT16, v.device)
    last: _Output | None = None
    if output_final_state:
        wanted = final_state_dtype or (None if final_state is None else dtype_name(final_state.dtype))
        dtype = final_dtype(initial_state, wanted)
        _check_dtype("final_state", dtype, STATES)
        states = (sequences, value_heads, HEAD_DIM, HEAD_DIM)
        last = _Output.of("final_state", final_state, states, dtype, v.device)
    first = None if initial_state is None else _held(initial_state)
    final = None if last is None else last.buffer
    if len(v):
        g, beta = g.to(FLOAT32), beta.to(FLOAT32)
        q, k, v, g, beta, cu_seqlens = map(_held, (q, k, v, g, beta, cu_seqlens))
        dtypes = (None if state is None else dtype_name(state.dtype) for state in (first, final))
        launch = _compiled(v.device, fused_source, heads, value_heads, *dtypes, beta_max)
        launch(q, k, v, g, beta, cu_seqlens, first, out.buffer, final, default_scale(scale, HEAD_DIM))
    elif final is not None:  # there is no tensor map of no tokens, and nothing to add to the states
        final.zero_() if first is None else final.copy_(first)
    return {"o": out.finish()} | ({} if last is None else {"final_state": last.finish()})
