# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs for gdn_prefill."""

from __future__ import annotations

from torch import Generator, Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.delta_prefill.inputs import Options, drawn_tensors
from gdnbench_kernels.gdn import convert_call
from gdnbench_kernels.gdn_inputs import Span, made_conventions, random_gates
from gdnbench_kernels.gdn_prefill.sizes import CHUNK


def synth(
    *,
    seqlens: tuple[int, ...] = (1, 63, 64, 65, 500),
    heads: tuple[int, int] = (2, 4),
    head_dim: tuple[int, int] = (128, 128),
    key_correlation: float = 0.0,
    query_correlation: float = 0.0,
    gate_span: Span = 1.0,
    gate_spike: float = 0.0,
    beta: Span = (0.0, 1.0),
    initial_state: bool = False,
    state_dtype: str = "float32",
    dtype: str = "bfloat16",
    offsets_dtype: str = "int32",
    gate: str = "log",
    state_layout: str = "VK",
    qk: str = "normalised",
    nan_at: tuple[int, ...] = (),
    chunk_tables: bool = False,
    final_state_dtype: str = "",
    scale: float | None = None,
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `seqlens`: tokens of each sequence, zero allowed. `heads`: (H, Hv). `head_dim`: (K, V). `key_correlation`:
    expected cosine of two keys of a head, in [0, 1]; `query_correlation`: the same of its queries, which
    share the keys' common vector. `gate_span`: expected sum of |g| over 64 tokens. `gate_spike`: by how much
    |g| of one drawn token in every 64 is larger. `beta`: one value or a range; beyond 1 the call's beta_max
    is 2. `nan_at`: tokens, counted over the whole batch, whose q, k, v, g and beta are NaN. `gate`,
    `state_layout`, `qk`: conventions of the call. `chunk_tables`: the call has chunk_indices, with two rows
    past the last chunk that name no sequence, and chunk_offsets. `final_state_dtype`, `scale`: scalars of the
    call, not set unless given.
    """
    options = Options(
        seqlens=seqlens,
        heads=heads,
        head_dim=head_dim,
        key_correlation=key_correlation,
        query_correlation=query_correlation,
        gate_spike=gate_spike,
        beta=beta,
        initial_state=initial_state,
        state_dtype=state_dtype,
        dtype=dtype,
        offsets_dtype=offsets_dtype,
        qk=qk,
        nan_at=nan_at,
        chunk_tables=chunk_tables,
        final_state_dtype=final_state_dtype,
        scale=scale,
        seed=seed,
    )
    conventions = made_conventions("gdn_prefill", gate, state_layout, qk)

    def gates(shape: tuple[int, int], generator: Generator) -> Tensor:
        return random_gates(shape, gate_span, generator)

    tensors = drawn_tensors("gdn_prefill", options, CHUNK, gates)
    call = Call(tensors, options.scalars(), {"gate": "log", "state_layout": "VK", "qk": qk})
    return convert_call("gdn_prefill", call, conventions, ("initial_state",))
