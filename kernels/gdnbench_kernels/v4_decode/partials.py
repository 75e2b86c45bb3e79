# SPDX-License-Identifier: Apache-2.0
"""The partial outputs of a call whose queries are split, and their merge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.programs import compiled
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.sources import merge_source


@dataclass(frozen=True, slots=True)
class Partials:
    """What each split of R = B S H rows computes, as `splits` describes it."""

    o: Tensor
    """[n, R, 512] float32."""
    lse: Tensor
    """[n, R] float32, base 2."""

    @staticmethod
    def allocate(splits: int, rows: int, device: torch.device) -> Partials:
        """New tensors, not initialised."""
        o = torch.empty((splits, rows, HEAD_DIM), dtype=torch.float32, device=device)
        return Partials(o, torch.empty((splits, rows), dtype=torch.float32, device=device))

    def merge(
        self, arch: str, attn_sink: Tensor | None, o: Tensor, lse: Tensor | None, form: LseForm
    ) -> None:
        """Write o [B, S, H, 512] bfloat16, and lse [B, S, H] float32 if it is given, both contiguous. Runs
        after the kernels that fill the partial outputs, on the same stream."""
        made = compiled(
            arch,
            merge_source,
            attn_sink is not None,
            lse is not None,
            form.base,
            form.sink,
            form.empty,
        )
        rows = self.lse.shape[1]
        flat = None if lse is None else lse.view(rows)
        made(self.o, self.lse, attn_sink, o.view(rows, HEAD_DIM), flat)
