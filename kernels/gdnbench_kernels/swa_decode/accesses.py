# SPDX-License-Identifier: Apache-2.0
"""The latent rows that the requests of a call attend to, for `gdnbench lineage`."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Accesses, Call
from gdnbench_kernels.swa_decode.layouts import page_parts
from gdnbench_kernels.swa_decode.window import attended, flat_indices


def accesses(call: Call) -> tuple[Accesses, ...]:
    """A read for each entry that counts; the call writes nothing.

    Entry j of a window of n has the position j - (n - 1) from the query's own token: windows are in order of
    position and end with that token. `gdnbench lineage` checks that windows of successive calls fit together
    before it relies on this.
    """
    indices = flat_indices(call.tensors["swa_indices"], call.conventions.get("index_shape", "TW")).cpu()
    lens = call.tensors["swa_lens"].cpu().long()
    request, entry = torch.nonzero(attended(indices, lens), as_tuple=True)
    reads = torch.stack([request, indices[request, entry].long(), entry - (lens[request] - 1)], dim=1)
    none = torch.empty((0, 3), dtype=torch.int64)
    split = call.tensors["cache"].shape[1]
    one = torch.ones(len(lens), dtype=torch.int64)
    parts = page_parts(call.conventions.get("cache_layout"))
    return (
        Accesses(
            "window", "cache", None, reads, none, one, pooled=True, split=split, parts=parts, window=True
        ),
    )
