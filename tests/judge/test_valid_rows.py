# SPDX-License-Identifier: Apache-2.0
"""What of a kernel's tensors counts, as the contract's regions have it."""

from __future__ import annotations

import torch

from gdnbench.judge.valid_rows import keep_valid_rows
from gdnbench.ops import operation
from gdnbench.synth import synthesise


def test_rows_of_no_chunk_and_of_no_token_are_left_out() -> None:
    """Sequences of 65 and 3 tokens have chunks of 64, 1 and 3; of the shapes' four chunks the last is
    nobody's."""
    call = synthesise("gdn_prefill", seqlens=(65, 3), heads=(1, 1), head_dim=(8, 8))
    tensors = {
        "o": torch.full((68, 1, 8), 7.0),
        "A": torch.full((4, 1, 64, 64), 7.0),
        "U": torch.full((4 * 64, 1, 8), 7.0),
        "h": torch.full((4, 1, 8, 8), 7.0),
    }
    found = keep_valid_rows(operation("gdn_prefill"), call, tensors)
    assert bool((found["o"] == 7).all())
    assert [int((found["A"][chunk] == 7).sum()) for chunk in range(4)] == [64 * 64, 64, 3 * 64, 0]
    assert bool((found["A"][2, 0, :3] == 7).all())
    rows = (found["U"][:, 0, 0] == 7).nonzero().flatten().tolist()
    assert rows == [*range(64), 64, 128, 129, 130]
    assert [bool((found["h"][chunk] == 7).all()) for chunk in range(4)] == [True, True, True, False]
    assert bool((tensors["h"] == 7).all())  # they are copies


def test_padding_of_a_batch_is_left_out() -> None:
    call = synthesise("gdn_decode", batch=3, heads=(1, 1), head_dim=(8, 8), padding=0.34)
    padding = (call.tensors["state_indices"].reshape(3, -1)[:, 0] < 0).tolist()
    assert sorted(padding) == [False, False, True]
    found = keep_valid_rows(operation("gdn_decode"), call, {"o": torch.ones(3, 1, 1, 8)})["o"]
    assert [bool(row.any()) for row in found] == [not padded for padded in padding]
