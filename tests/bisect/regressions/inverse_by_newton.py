# SPDX-License-Identifier: Apache-2.0
"""Commits of the inverse: its diagonal blocks by Newton-Schulz on tensor cores instead of by substitution.

Four rounds with fp16 operands are as good as the merges around them; three are as good for random keys alone
(docs/inverse.md).
"""

from __future__ import annotations

import re

from tests.bisect.regressions.edits import Change, Files, module, once

PATH = module("inverse")

_NEWTON = '''@cute.jit
def _invert_diagonal(
    r_block: cute.Tensor, scratch: Scratch, warp: cutlass.Constexpr, lane: cutlass.Int32
) -> cute.Tensor:
    """X += X (1 - (1 + B) X) from X = 1 - B, the residual of which squares with every round."""
    r_unit, r_whole, r_x = (cute.make_rmem_tensor(VALUES, cutlass.Float32) for _ in range(3))
    for value in cutlass.range_constexpr(VALUES):
        row, column = _place_in_block(value, lane)
        r_unit[value] = cutlass.Float32(1.0) if row == column else cutlass.Float32(0.0)
        r_whole[value] = r_unit[value] + r_block[value]
        r_x[value] = r_unit[value] - r_block[value]
    whole = _rounded(r_whole, scratch.parts)
    for _ in cutlass.range_constexpr(4):
        x = _rounded(r_x, scratch.parts)
        r_product = _product([whole], [_turned(x, scratch, warp, lane)])
        r_residual = cute.make_rmem_tensor(VALUES, cutlass.Float32)
        r_residual.store(r_unit.load() - r_product.load())
        residual = _turned(_rounded(r_residual, scratch.parts), scratch, warp, lane)
        r_x.store(r_x.load() + _product([x], [residual]).load())
    return r_x


def _turned(operand: Operand, scratch: Scratch, warp: int, lane: Any) -> Operand:
    """A left operand as a right one, by way of block (warp, warp)."""
    cute.arch.sync_warp()
    _publish(operand, scratch, warp, warp, lane)
    cute.arch.sync_warp()
    return _operand(scratch, warp, warp, lane)


'''


def introduce(files: Files) -> None:
    """ValueError if the inverse is not the one that this was written for."""
    text = files[PATH]
    text = once(text, "            _scatter_negated(r_rows[None, warp], s_diagonal, lane)\n", "")
    text = once(text, "    s_diagonal = scratch.s_diagonal[None, None, warp_in_group]\n", "")
    text = once(text, "    r_diagonal = _invert_diagonal(s_diagonal, lane)\n", "")
    text = once(
        text,
        "_merge(r_rows, r_diagonal, scratch, warp, lane, barrier)",
        "_merge(r_rows, scratch, warp, lane, barrier)",
    )
    text = once(
        text, "    r_rows: cute.Tensor,\n    r_diagonal: cute.Tensor,\n", "    r_rows: cute.Tensor,\n"
    )
    assign = "    _assign(r_rows[None, warp], r_diagonal)\n"
    made = "    r_diagonal = _invert_diagonal(r_rows[None, warp], scratch, warp, lane)\n"
    text = once(text, assign, made + assign)
    first = text.index("@cute.jit\ndef _scatter_negated(")
    last = text.index("@cute.jit\ndef _merge(")
    files[PATH] = text[:first] + _NEWTON + text[last:]


def rename(old: str, new: str) -> Change:
    return lambda files: files.update({PATH: re.sub(rf"\b{old}\b", new, files[PATH])})
