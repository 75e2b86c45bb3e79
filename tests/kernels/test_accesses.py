# SPDX-License-Identifier: Apache-2.0
"""Which rows a call reads and writes, against loops over the words of docs/operations.md."""

from __future__ import annotations

import random

import pytest
import torch

from gdnbench.ops import operation
from gdnbench_kernels.contract import Accesses, Call


def accesses_of(name: str, tensors: dict[str, torch.Tensor], **scalars: bool) -> Accesses:
    contract = operation(name)
    assert contract.accesses is not None
    (found,) = contract.accesses(Call(tensors, scalars, contract.default_conventions))
    return found


def rows(tensor: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(row) for row in tensor.tolist()]


@pytest.mark.parametrize("op", ["gdn_decode", "kda_decode"])
@pytest.mark.parametrize("seed", range(4))
def test_decode(seed: int, op: str) -> None:
    """Sequence i reads slot state_indices[i, num_accepted[i] - 1], or read_indices[i], and after its token t
    writes slot state_indices[i, t]; the later token's state stays."""
    chosen = random.Random(seed)
    indices = torch.tensor([[chosen.randrange(-1, 5) for _ in range(3)] for _ in range(6)], dtype=torch.int32)
    accepted = torch.tensor([chosen.randrange(1, 4) for _ in range(6)], dtype=torch.int32)
    named = seed % 2 == 0
    column = indices.gather(1, (accepted.long() - 1)[:, None])[:, 0]
    extra = {"num_accepted": accepted} if named else {"read_indices": column}
    found = accesses_of(op, {"state_indices": indices, **extra})
    reads, writes = [], []
    for sequence, slots in enumerate(indices.tolist()):
        read = slots[int(accepted[sequence]) - 1]
        if read == -1:
            continue
        reads.append((sequence, read, 0))
        last = {slot: token for token, slot in enumerate(slots, 1) if slot != -1}
        writes += [(sequence, slot, token) for slot, token in last.items()]
    assert rows(found.reads) == reads
    assert sorted(rows(found.writes)) == sorted(writes)
    assert found.tokens.tolist() == [3] * 6
    assert found.pooled


def test_prefill() -> None:
    """States are gathered: row n is sequence n's. A sequence without tokens leaves what it was given."""
    tensors = {"cu_seqlens": torch.tensor([0, 5, 5, 6]), "initial_state": torch.empty(3, 1, 2, 2)}
    found = accesses_of("gdn_prefill", tensors)
    assert rows(found.reads) == [(0, 0, 0), (2, 2, 0)]
    assert rows(found.writes) == [(0, 0, 5), (2, 2, 1)]
    assert found.tokens.tolist() == [5, 0, 1]
    assert not found.pooled
    del tensors["initial_state"]
    without = accesses_of("gdn_prefill", tensors, output_final_state=False)
    assert (rows(without.reads), rows(without.writes), without.after) == ([], [], None)


def test_window() -> None:
    """A window ends with the query's own token; entries of -1 and past the length do not count."""
    tensors = {
        "swa_indices": torch.tensor([[7, -1, 9, 3], [5, 6, 1, 1]], dtype=torch.int32),
        "swa_lens": torch.tensor([3, 2], dtype=torch.int32),
        "cache": torch.empty(4, 16, 512, device="meta"),
    }
    found = accesses_of("swa_decode", tensors)
    assert rows(found.reads) == [(0, 7, -2), (0, 9, 0), (1, 5, -1), (1, 6, 0)]
    assert (rows(found.writes), found.split, found.window) == ([], 16, True)


def test_window_of_fp8_ds_mla_pages() -> None:
    """A page holds the 576 bytes of codes and rope of all its rows first, then their 8 bytes of scales."""
    tensors = {
        "swa_indices": torch.tensor([[7, -1, 9, 3]], dtype=torch.int32),
        "swa_lens": torch.tensor([3], dtype=torch.int32),
        "cache": torch.empty(4, 16, 584, dtype=torch.uint8, device="meta"),
    }
    contract = operation("swa_decode")
    assert contract.accesses is not None
    conventions = {**contract.default_conventions, "cache_layout": "fp8_ds_mla"}
    (found,) = contract.accesses(Call(tensors, {}, conventions))
    assert rows(found.reads) == [(0, 7, -2), (0, 9, 0)]
    assert (found.split, found.parts) == (16, (576, 8))
