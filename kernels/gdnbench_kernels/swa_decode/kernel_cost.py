"""FLOP and bytes of swa_decode, counted from the shapes.

    python -m gdnbench_kernels.swa_decode.kernel_cost [--heads 64] [--batch 1]

The counts are those of a kernel that reads everything once: for each token its window of latent rows, its
queries and its outputs. A product of M x N over K is 2 M N K FLOP. Rows that two tokens share are counted
twice, because each token's CTAs read them. Indices, lengths and sinks, below 1 % together, are left out.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
from dataclasses import dataclass

from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_WINDOW

BF16, F32 = 2, 4


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOP and bytes of one token or of several."""

    flop: int
    rows: int  # bytes of the window's rows, scales included
    queries: int
    outputs: int  # o and lse

    @property
    def bytes(self) -> int:
        return self.rows + self.queries + self.outputs

    def __mul__(self, tokens: int) -> Cost:
        return Cost(self.flop * tokens, self.rows * tokens, self.queries * tokens, self.outputs * tokens)


def row_bytes(layout: CacheLayout, scale_bytes: int = F32) -> int:
    """Bytes of one latent row and its scales; `scale_bytes` is the size of an inv_scale."""
    if layout is CacheLayout.FP8_DS_MLA:
        return layout.row_size
    return layout.row_size * BF16 if layout is CacheLayout.BFLOAT16 else layout.row_size + scale_bytes


def cost(
    heads: int,
    attended: int = MAX_WINDOW,
    layout: CacheLayout = CacheLayout.FP8_DS_MLA,
    *,
    scale_bytes: int = F32,
    lse: bool = True,
) -> Cost:
    """The cost of one token that attends to `attended` slots: Q K^T and P V, each heads x attended x 512."""
    return Cost(
        flop=2 * 2 * heads * attended * HEAD_DIM,
        rows=attended * row_bytes(layout, scale_bytes),
        queries=heads * HEAD_DIM * BF16,
        outputs=heads * HEAD_DIM * BF16 + (heads * F32 if lse else 0),
    )


def table(heads: int, batch: int) -> str:
    """Markdown table: the cost of a batch of full windows, by layout."""
    lines = ["| layout | FLOP | rows | queries | outputs | bytes |", f"|{'---|' * 6}"]
    for layout in CacheLayout:
        found = cost(heads, layout=layout) * batch
        counts = (found.flop, found.rows, found.queries, found.outputs, found.bytes)
        lines.append(f"| {' | '.join((layout.value, *(f'{count:,}' for count in counts)))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    print(table(options.heads, options.batch))
