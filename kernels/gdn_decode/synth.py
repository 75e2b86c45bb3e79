"""Made inputs for gdn_decode."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.gdn import convert_call
from gdnbench_kernels.gdn_decode.slots import PADDING
from gdnbench_kernels.gdn_inputs import (
    Span,
    betas,
    ends,
    gates,
    made_conventions,
    made_nan,
    named_dtypes,
    queries_and_keys,
)


def synth(
    *,
    batch: int = 4,
    steps: int = 1,
    slots: int = 0,
    heads: tuple[int, int] = (2, 4),
    head_dim: tuple[int, int] = (128, 128),
    key_correlation: float = 0.0,
    gate_span: Span = 1.0,
    beta: Span = (0.0, 1.0),
    speculative: bool = False,
    padding: float = 0.0,
    state_dtype: str = "float32",
    dtype: str = "bfloat16",
    offsets_dtype: str = "int32",
    gate: str = "log",
    state_layout: str = "VK",
    qk: str = "normalised",
    nan_at: tuple[int, ...] = (),
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `batch`: B sequences; `steps`: S tokens of each. `slots`: size of the pool, batch * steps + 1 if 0; slots
    are dealt at random. `speculative`: num_accepted is given, random in 1 .. S. `padding`: share of the
    sequences that are padding (-1), rounded down. `nan_at`: sequences whose q, k, v, g and beta are NaN.
    `key_correlation` counts over all tokens of the batch; the other options are those of gdn_prefill.
    """
    if not 0 <= padding <= 1:
        raise ContractError(f"padding is {padding:g}; it is a share, in [0, 1]")
    (key_heads, value_heads), (key_dim, value_dim) = heads, head_dim
    generator = torch.Generator().manual_seed(seed)
    dtypes = named_dtypes(dtype, state_dtype, offsets_dtype)
    conventions = made_conventions("gdn_decode", gate, state_layout, qk)
    tokens, per_head = batch * steps, (batch * steps, value_heads)
    q, k = queries_and_keys(
        (tokens, key_heads, key_dim), key_correlation, dtypes.activations, qk == "raw", generator
    )
    by_token = {
        "q": q,
        "k": k,
        "v": torch.randn(tokens, value_heads, value_dim, generator=generator).to(dtypes.activations),
        "g": gates(per_head, gate_span, generator),
        "beta": betas(per_head, beta, generator),
    }
    tensors = {name: x.view(batch, steps, *x.shape[1:]) for name, x in by_token.items()}
    pool = torch.randn(slots or tokens + 1, value_heads, value_dim, key_dim, generator=generator)
    tensors["state"] = (pool * key_dim**-0.5).to(dtypes.states)
    indices = _deal(batch, steps, len(pool), int(padding * batch), generator)
    tensors["state_indices"] = indices.to(dtypes.offsets)
    if speculative:
        tensors["num_accepted"] = torch.randint(
            1, steps + 1, (batch,), generator=generator, dtype=torch.int32
        )
    made_nan("gdn_decode", tensors, nan_at, "sequence")
    call = Call(
        tensors,
        {"beta_max": 2.0 if ends(beta)[1] > 1 else 1.0},
        {"gate": "log", "state_layout": "VK", "qk": qk},
    )
    return convert_call("gdn_decode", call, conventions, ("state",))


def _deal(batch: int, steps: int, slots: int, padded: int, generator: Generator) -> Tensor:
    """[B, S] distinct slots, with `padded` sequences of -1 at random places."""
    needed = (batch - padded) * steps
    if slots < needed:
        raise ContractError(f"a pool of {slots} slots is too small: {batch - padded} sequences need {needed}")
    indices = torch.full((batch, steps), PADDING)
    active = torch.randperm(batch, generator=generator)[padded:]
    indices[active] = torch.randperm(slots, generator=generator)[:needed].view(-1, steps)
    return indices
