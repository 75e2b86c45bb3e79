# SPDX-License-Identifier: Apache-2.0
"""What the functions of the decode kernel (kernel_sm90.py) pass to one another. CuTe DSL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute


@dataclass(frozen=True)
class Taps:
    """Float32 tensors that the builds of kernel_sm90_taps.py store to or load from."""

    alpha: cute.Tensor  # [B, S, Hv]; with a gate per channel [B, S, Hv, 128]
    beta: cute.Tensor  # [B, S, Hv]
    delta: cute.Tensor  # [B, S, Hv, 128]


@dataclass(frozen=True)
class KernelParams:
    """The kernel's parameters, in the order of the program's; the table above has shapes and dtypes."""

    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    g: cute.Tensor
    beta: cute.Tensor
    A_log: cute.Tensor | None
    dt_bias: cute.Tensor | None
    state: cute.Tensor
    state_indices: cute.Tensor
    num_accepted: cute.Tensor | None
    read_indices: cute.Tensor | None
    o: cute.Tensor
    taps: Taps | None
    scale: cutlass.Float32
    beta_max: cutlass.Float32
    lower_bound: cutlass.Float32 | None = None


@dataclass(frozen=True)
class WorkTile:
    """One thread's work: rows of a value head's state from `row` on, as lane `part` of the 8 of each row.

    The thread is lane `lane` of a warp whose rows start at `first_row`. `operands` is the shared-memory
    address of the warp's q, k and v; the mbarrier `qkv_barrier` completes when they have landed. Where the
    state goes through shared memory, `tile` is the address of the warp's rows and `state_barrier` their
    mbarrier.
    """

    sequence: cutlass.Int32
    head: cutlass.Int32
    first_row: cutlass.Int32
    row: cutlass.Int32
    part: cutlass.Int32
    lane: cutlass.Int32
    operands: cutlass.Int32
    qkv_barrier: cute.Pointer
    tile: cutlass.Int32
    state_barrier: cute.Pointer


@dataclass(frozen=True)
class Gates:
    """Inputs of the gates in registers, as floats: g or a, and beta or b, of this lane's token; A_log and
    dt_bias of the head. None if the call has none. With a gate per channel (kda_decode) g is in shared
    memory, and dt_bias lists this lane's channels."""

    g: Any
    beta: Any
    A_log: Any
    dt_bias: Any

    def loaded(self) -> list[Any]:
        """All of them."""
        bias = self.dt_bias if isinstance(self.dt_bias, list) else [self.dt_bias]
        return [x for x in (self.g, self.beta, self.A_log, *bias) if x is not None]


@dataclass(frozen=True)
class Factors:
    """A token's scalars: alpha; alpha n(k); scale alpha n(q); scale n(k) n(q) k . q; n(k); beta."""

    alpha: Any
    sk_factor: Any
    sq_factor: Any
    u_factor: Any
    k_factor: Any
    beta: Any


@dataclass(frozen=True)
class Token:
    """This lane's elements of a token's q and k as floats, and the token's factors. `decays`: shared-memory
    address of this lane's gates where each channel has its own (kda_decode), else None."""

    queries: list[Any]
    keys: list[Any]
    factors: Factors
    decays: Any = None
