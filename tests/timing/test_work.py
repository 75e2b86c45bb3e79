# SPDX-License-Identifier: Apache-2.0
"""Bytes and FLOP of the operations, against figures worked out by hand."""

from __future__ import annotations

import pytest
import torch

from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.contract import work as prefill_work
from gdnbench_kernels.kda_prefill.contract import work as channel_work
from gdnbench_kernels.swa_decode.contract import work as swa_work

D = 128


def prefill(lengths: list[int], heads: tuple[int, int], **more: object) -> Call:
    """A call that has shapes and no sense: what it costs does not depend on values."""
    tokens, (key_heads, value_heads) = sum(lengths), heads
    tensors = {
        "q": torch.empty(tokens, key_heads, D, dtype=torch.bfloat16),
        "k": torch.empty(tokens, key_heads, D, dtype=torch.bfloat16),
        "v": torch.empty(tokens, value_heads, D, dtype=torch.bfloat16),
        "g": torch.empty(tokens, value_heads),
        "beta": torch.empty(tokens, value_heads),
        "cu_seqlens": torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32),
    }
    return Call(tensors, {"output_final_state": False, **more}, {})


def test_prefill_per_token_and_value_head() -> None:
    """Published for the fused form at two value heads to a key head: 165.2 kFLOP and 776 bytes."""
    call = prefill([2048], (2, 4))
    found, units = prefill_work(call), 2048 * 4
    assert found.flop / units == pytest.approx(165_200, abs=50)  # a figure of four digits
    assert found.bytes - 2 * 4 == 776 * units  # cu_seqlens: two int32


def test_prefill_by_hand() -> None:
    """Chunks of 64 and 3 tokens, one head, an empty sequence beside them."""
    call = prefill([67, 0], (1, 1), output_final_state=True)
    flop = 0.0
    for rows in (64, 3):
        flop += 4 * (2 * rows * rows * D)  # K K^T, Q K^T, Ai beta (...), P V_new
        flop += 3 * (2 * rows * D * D)  # K S^T, Q S^T, V_new^T K
        flop += rows**3 / 3
    found = prefill_work(call)
    assert found.flop == round(flop)
    assert found.read == 3 * 67 * D * 2 + 2 * 67 * 4 + 3 * 4
    assert found.written == 67 * D * 2 + 2 * D * D * 4  # a state for the empty sequence too


def test_prefill_reads_the_states_it_starts_from() -> None:
    call = prefill([64], (1, 2))
    state = torch.empty(1, 2, D, D, dtype=torch.bfloat16)
    begun = Call({**call.tensors, "initial_state": state}, call.scalars, {})
    assert prefill_work(begun).read - prefill_work(call).read == 2 * D * D * 2
    assert prefill_work(begun).flop == prefill_work(call).flop


def test_prefill_with_gates_by_channel_per_token_and_value_head() -> None:
    """In chunks of 16: four products of 16 x 16 by 128, three of 16 x 128 by 128, 16^3 / 3. A gate has K
    floats."""
    call = prefill([2048], (2, 4))
    tensors = {**call.tensors, "g": torch.empty(2048, 4, D), "A_log": torch.empty(4)}
    found, units = channel_work(Call(tensors, call.scalars, {"gate": "raw"})), 2048 * 4
    assert found.flop * 16 / units == pytest.approx(4 * 2 * 16 * 16 * D + 3 * 2 * 16 * D * D + 16**3 / 3)
    # q and k of two value heads, v, o, g, beta; cu_seqlens and A_log.
    assert found.bytes == (2 * D + 2 * D + 2 * D + 4 * D + 4) * units + 2 * 4 + 4 * 4


@pytest.mark.parametrize(("heads", "flop", "size"), [(64, 16.8e6, 206e3), (128, 33.6e6, 337e3)])
def test_swa_per_request(heads: int, flop: float, size: float) -> None:
    """2 h 128 1024 FLOP and 128 584 + 2 h 512 2 + 4 h bytes a request with a window of its own."""
    requests = 3
    tensors = {
        "q": torch.empty(requests, heads, 512, dtype=torch.bfloat16),
        "cache": torch.empty(2 * requests, 64, 584, dtype=torch.uint8),
        "swa_indices": torch.randperm(128 * requests).to(torch.int32).view(requests, 128),
        "swa_lens": torch.full((requests,), 128, dtype=torch.int32),
    }
    found = swa_work(Call(tensors, {"output_lse": True}, {"cache_layout": "fp8_ds_mla"}))
    assert found.flop == requests * 2 * heads * 128 * 1024
    assert found.flop / requests == pytest.approx(flop, rel=5e-3)  # figures of three digits
    size_of_tables = (128 + 1) * 4  # of swa_indices and swa_lens, which the formula leaves out
    assert found.bytes == requests * (128 * 584 + 2 * heads * 512 * 2 + 4 * heads + size_of_tables)
    assert found.bytes / requests == pytest.approx(size, rel=5e-3)


def test_swa_counts_what_is_attended_to() -> None:
    """Two requests share a slot, one entry is padding, one request attends to nothing."""
    lens, heads = torch.tensor([3, 1, 0], dtype=torch.int32), 2
    indices = torch.tensor([[5, -1, 70, 9], [70, 1, 1, 1], [3, 3, 3, 3]], dtype=torch.int32)
    tensors = {
        "q": torch.empty(3, heads, 512, dtype=torch.bfloat16),
        "cache": torch.empty(2, 64, 512, dtype=torch.uint8),
        "inv_scale": torch.empty(128),
        "swa_indices": indices,
        "swa_lens": lens,
    }
    found = swa_work(Call(tensors, {}, {"cache_layout": "per_token_scale"}))
    assert found.flop == 3 * 2 * heads * 1024  # entries 5, 70 and 70
    rows = 2 * (512 + 4)  # slots 5 and 70, an fp32 scale each
    assert found.read == rows + 2 * heads * 512 * 2 + 4 * 4 + 3 * 4
    assert found.written == 3 * heads * 512 * 2
