# SPDX-License-Identifier: Apache-2.0
"""Wrong kernels of indexer_topk: the boundary, ties, columns and padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.power.indexer_topk_kernel import Topk
from tests.power.library import Shelf
from tests.power.number_formats import keep_bits

shelf = Shelf("indexer_topk", right=False)


# The boundary and ties


class Count(Topk):
    """Another number of indices: `count(length, k)`."""

    def __init__(self, count: Callable[[int, int], int]) -> None:
        self.other = count

    def count(self, length: int, k: int) -> int:
        return max(0, self.other(length, k))


class Keys(Topk):
    """Candidates are compared otherwise: `keys(candidates)`."""

    def __init__(self, keys: Callable[[Tensor], Tensor]) -> None:
        self.other = keys

    def keys(self, candidates: Tensor) -> Tensor:
        return super().keys(self.other(candidates))


class Chosen(Topk):
    """The selected indices are changed: `edit(chosen, candidates)`."""

    def __init__(self, edit: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.edit_chosen = edit

    def chosen(self, candidates: Tensor, count: int) -> Tensor:
        found = super().chosen(candidates, count)
        return self.edit_chosen(found, candidates) if len(found) else found


def above_boundary(chosen: Tensor, candidates: Tensor) -> Tensor:
    """Without the ties at the boundary, of rows that leave something out."""
    if len(chosen) == len(candidates):
        return chosen
    values = candidates[chosen].double()
    return chosen[values > values.min()]


def swapped_for_the_next(chosen: Tensor, candidates: Tensor) -> Tensor:
    """The last selected is replaced by the largest that is not selected."""
    if len(chosen) == len(candidates):
        return chosen
    left = torch.ones(len(candidates), dtype=torch.bool)
    left[chosen] = False
    keys = candidates.double().nan_to_num(-torch.inf, torch.inf, -torch.inf).masked_fill(~left, -torch.inf)
    return torch.cat([chosen[:-1], keys.argmax().view(1)])


def unsigned_bits(candidates: Tensor) -> Tensor:
    """The bits of fp32 as unsigned integers: negative numbers are above, in reverse order."""
    return (candidates.float().contiguous().view(torch.int32).long() & 0xFFFFFFFF).double()


shelf.add("boundary", "one index too few", Count(lambda length, k: min(length, k) - 1))
shelf.add("boundary", "one too few of long rows", Count(lambda length, k: min(length, k) - (length > k)))
shelf.add("boundary", "the next one for the last", Chosen(swapped_for_the_next))
shelf.add("boundary", "the smallest", Keys(lambda x: -x))
shelf.add("boundary", "the largest absolute values", Keys(torch.abs))
shelf.add("boundary", "the first ones", Keys(lambda x: -torch.arange(len(x)).float()))
shelf.add("boundary", "compared in bf16", Keys(lambda x: keep_bits(x, 7)))
shelf.add("boundary", "compared in fp16", Keys(lambda x: x.half()))
shelf.add("boundary", "the top 16 bits alone", Keys(lambda x: keep_bits(x, 7, truncate=True)))
shelf.add("boundary", "bits as unsigned integers", Keys(unsigned_bits))
shelf.add("ties", "those at the boundary are dropped", Chosen(above_boundary))
shelf.add("ties", "zeros are dropped", Chosen(lambda chosen, x: chosen[x[chosen] != 0]))
shelf.add("ties", "negative numbers are dropped", Chosen(lambda chosen, x: chosen[~(x[chosen] < 0)]))


# Columns


class Start(Topk):
    """Rows start elsewhere: `start(given)`."""

    def __init__(self, start: Callable[[int], int]) -> None:
        self.other = start

    def start(self, given: int) -> int:
        return self.other(given)


class Length(Topk):
    """Another number of candidates: `length(given)`."""

    def __init__(self, length: Callable[[int], int]) -> None:
        self.other = length

    def length(self, given: int) -> int:
        return max(0, self.other(given))


class Absolute(Topk):
    """Indices are columns, not from the row's start."""

    def row(self, chosen: Tensor, k: int, start: int, length: int) -> Tensor:
        return super().row(chosen + start, k, start, length)


shelf.add("columns", "row_starts are ignored", Start(lambda _: 0))
shelf.add("columns", "row_starts one too large", Start(lambda start: start + 1))
shelf.add("columns", "the last candidate is lost", Length(lambda given: given - 1))
shelf.add("columns", "one column more", Length(lambda given: given + 1))
shelf.add("columns", "stale columns are candidates", Length(lambda given: given + 4096))
shelf.add(
    "columns", "lengths in whole vectors of 4", Length(lambda given: given if given < 4 else given // 4 * 4)
)
shelf.add("columns", "absolute indices", Absolute())


# Rows


class Row(Topk):
    """An output row is spoiled: `edit(row, count)`, where the first `count` entries are indices."""

    def __init__(self, edit: Callable[[Tensor, int], Tensor]) -> None:
        self.edit_row = edit

    def row(self, chosen: Tensor, k: int, start: int, length: int) -> Tensor:
        return self.edit_row(super().row(chosen, k, start, length), min(len(chosen), k))


def put(place: Callable[[int], int], value: Callable[[Tensor, int], int], least: int) -> Row:
    """`value` at `place` of rows with `least` indices or more."""

    def edit(row: Tensor, count: int) -> Tensor:
        if count >= least:
            row[place(count)] = value(row, count)
        return row

    return Row(edit)


class DependsOnCalls(Topk):
    """A counter is not reset: every second call loses the first candidate."""

    def chosen(self, candidates: Tensor, count: int) -> Tensor:
        found = super().chosen(candidates, count)
        return found[1:] if self.calls % 2 else found


shelf.add("rows", "an index twice", put(lambda n: n - 1, lambda row, n: int(row[0]), 2))
shelf.add("rows", "-1 among the indices", put(lambda n: 0, lambda row, n: -1, 1))
shelf.add("rows", "an index past the candidates", put(lambda n: 0, lambda row, n: 1 << 24, 1))
shelf.add("rows", "-2 among the indices", put(lambda n: 0, lambda row, n: -2, 1))
shelf.add("rows", "0 for padding", Row(lambda row, n: row.where(torch.arange(len(row)) < n, 0)))
shelf.add("rows", "padding first", Row(lambda row, n: row.roll(len(row) - n)))
shelf.add("rows", "padding is not written", Row(lambda row, n: row.where(torch.arange(len(row)) < n, -7)))
shelf.add("repeat", "every second call is off", DependsOnCalls(), repeats=True)
FAULTS = shelf.done()
