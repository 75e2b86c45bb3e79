# SPDX-License-Identifier: Apache-2.0
"""FLOP and bytes of the prefill kernels: by hand, from the plans, and in docs/prefill.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdnbench_kernels.gdn_prefill import chunk_output, chunk_state, chunk_uw, kernel_cost, kernel_sm100_fused
from gdnbench_kernels.plan import Buffer, KernelPlan

PAGE = Path(__file__).parents[2] / "docs" / "prefill.md"


def test_flop_of_the_products_of_a_chunk() -> None:
    """Of C = 64, K = V = 128: five products of 64 x 64 x 128, three of 64 x 128 x 128, the inverse."""
    inverse = 32 * 2 * 16 * 8 * 16 + 4 * 16 * 2 * sum(range(16))
    whole = 5 * 2 * 64 * 64 * 128 + 3 * 2 * 64 * 128 * 128 + inverse
    assert kernel_cost.total(group=2).flop == whole / 64
    assert kernel_cost.fused(group=2).flop == (whole - 2 * 64 * 64 * 128) / 64


@pytest.mark.parametrize("group", [1, 2, 3, 4])
def test_bytes_of_memory(group: int) -> None:
    """Rows of 256 bytes, of 4 for a gate; a state of 32 KiB for 64 tokens; q and k shared by the group."""
    # Times the group, everything is a whole number, but for the last bit of a third of 256.
    costs_of = {kernel: kernel_cost.cost(kernel, group).memory * group for kernel in kernel_cost.KERNELS}
    assert round(costs_of[kernel_cost.UW], 9) == 256 + group * (256 + 3 * 4 + 2 * 256)
    assert round(costs_of[kernel_cost.STATE], 9) == 256 + group * (2 * 256 + 4 + 512 + 256)
    assert round(costs_of[kernel_cost.OUTPUT], 9) == 2 * 256 + group * (256 + 512 + 4 + 256)
    assert round(kernel_cost.fused(group).memory * group, 9) == 2 * 256 + group * (2 * 256 + 2 * 4)


def test_what_two_value_heads_a_key_head_come_to() -> None:
    assert kernel_cost.total(group=2).memory == 3604
    assert kernel_cost.fused(group=2).memory == 776


def test_every_tensor_handed_on_is_written_once_and_read() -> None:
    for name in kernel_cost.BETWEEN:
        moves = [transfer for transfer in kernel_cost.TRANSFERS if transfer.tensor == name]
        assert sum(move.writes for move in moves) == 1
        assert moves[0].writes
        assert len(moves) > 1


def stage_bytes(plan: KernelPlan, names: tuple[str, ...]) -> int:
    found: tuple[Buffer, ...] = tuple(plan.buffer(name) for name in names)
    return sum(buffer.stage_bytes for buffer in found)


def test_what_is_asked_for_is_what_tma_brings_into_the_plans_buffers() -> None:
    """Stages of the buffers that a CTA loads, times the CTAs that load them, beside the bytes counted."""
    asked = {
        kernel: sum(
            transfer.requested * 64
            for transfer in kernel_cost.TRANSFERS
            if transfer.kernel == kernel
            and not transfer.writes
            and transfer.tensor not in ("g, beta", "g_cu")
        )
        for kernel in kernel_cost.KERNELS
    }
    assert asked[kernel_cost.UW] == stage_bytes(chunk_uw.PLAN, ("s_k", "s_v"))
    assert chunk_state.TILES == kernel_cost.STATE_TILES
    tile = stage_bytes(chunk_state.PLAN, ("s_k", "s_w", "s_u"))
    assert asked[kernel_cost.STATE] == chunk_state.TILES * tile
    assert asked[kernel_cost.OUTPUT] == stage_bytes(chunk_output.PLAN, ("s_q", "s_k", "s_v", "s_h"))


def test_the_fused_kernel_is_counted_as_it_is() -> None:
    """Its products, of accumulator and depth as in its header, and what a CTA loads and stores of a chunk."""
    # t_ks takes K h^T and then V_new.
    depths = {"t_kkt": 128, "t_qk": 128, "t_ks": 128 + 64, "t_qs": 128, "t_added": 64, "t_pv": 64}
    parts = {part.name: part.shape for part in kernel_sm100_fused.PLAN.tmem}
    assert parts.keys() == depths.keys()
    products = sum(2 * rows * columns * depths[name] for name, (rows, columns) in parts.items())
    inverse = sum(p.flop for p in kernel_cost.PRODUCTS if p.name.startswith("inverse"))
    assert kernel_cost.fused(group=2).flop == products / 64 + inverse
    moved = stage_bytes(kernel_sm100_fused.PLAN, ("s_k", "s_q", "s_v", "s_o"))
    assert kernel_cost.fused(group=2).requested == moved / 64 + 2 * 4


def test_the_page_has_the_tables() -> None:
    assert kernel_cost.tables(group=2) in PAGE.read_text(encoding="utf-8")
