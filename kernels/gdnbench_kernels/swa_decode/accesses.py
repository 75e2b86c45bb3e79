"""The latent rows that the requests of a call attend to, for `gdnbench lineage`."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Accesses, Call
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.window import attended, flat_indices


def accesses(call: Call) -> tuple[Accesses, ...]:
    """A read for each entry that counts; the call writes nothing.

    Entry j of a window of n has the position j - (n - 1) from the query's own token: windows are in order of
    position and end with that token. `gdnbench lineage` checks that windows of successive calls fit together
    before it relies on this. None for `fp8_ds_mla`, whose pages are not rows of tokens.
    """
    if call.conventions.get("cache_layout") == CacheLayout.FP8_DS_MLA:
        return ()
    indices = flat_indices(call.tensors["swa_indices"], call.conventions.get("index_shape", "TW")).cpu()
    lens = call.tensors["swa_lens"].cpu().long()
    request, entry = torch.nonzero(attended(indices, lens), as_tuple=True)
    reads = torch.stack([request, indices[request, entry].long(), entry - (lens[request] - 1)], dim=1)
    none = torch.empty((0, 3), dtype=torch.int64)
    split = call.tensors["cache"].shape[1]
    one = torch.ones(len(lens), dtype=torch.int64)
    return (Accesses("window", "cache", None, reads, none, one, pooled=True, split=split, window=True),)
