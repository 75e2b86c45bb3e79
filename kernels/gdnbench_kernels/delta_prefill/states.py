# SPDX-License-Identifier: Apache-2.0
"""Launches of prefill functions that overwrite the initial states with the final ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import PrefillTensors, final_dtype
from gdnbench_kernels.peers import PeerLaunch

Unpack = Callable[[Any], tuple[Tensor, Tensor | None]]
"""Of a function's result: o [T, Hv, V], and the final states [N, Hv, V, K], None if they are in the pool."""


class OverwrittenStates:
    """The pool of states that a call reads and overwrites: slot n is that of sequence n.

    A launch copies the initial states to the pool, so that each launch starts from them, and calls the
    function by `call`.
    """

    def __init__(self, params: PrefillTensors, call: Callable[..., Any]) -> None:
        k, v, initial = params.k, params.v, params.initial_state
        self._by = call
        self.output = params.output_final_state
        self.final = final_dtype(initial, params.final_state_dtype)
        count = len(params.cu_seqlens) - 1
        shape = (count, v.shape[1], v.shape[2], k.shape[2])
        # The wider of both dtypes, so that neither the states that are read nor those written are rounded.
        dtype = self.final if initial is None else torch.promote_types(initial.dtype, self.final)
        self.initial = torch.zeros(shape, dtype=dtype, device=v.device) if initial is None else initial
        self.pool = torch.empty(shape, dtype=dtype, device=v.device)
        self.slots = torch.arange(count, dtype=torch.int32, device=v.device)

    def launch(
        self, function: Callable[[], Any], unpack: Unpack, copies: tuple[tuple[Tensor, Tensor], ...] = ()
    ) -> PeerLaunch:
        """A launch of `function`. `copies`: other inputs that it overwrites, each as (its tensor, what it
        holds before)."""

        def run() -> Any:
            self.pool.copy_(self.initial)
            for into, source in copies:
                into.copy_(source)
            return self._by(function)

        def finish(result: Any) -> dict[str, Tensor]:
            o, found = unpack(result)
            final = self.pool if found is None else found
            return {"o": o} | ({"final_state": final.to(self.final)} if self.output else {})

        return PeerLaunch(run, finish)
