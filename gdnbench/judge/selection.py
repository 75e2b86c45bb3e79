# SPDX-License-Identifier: Apache-2.0
"""Judges an output whose rows are sets of indices: the largest of a row's candidates, as a top-k returns
them.

A row with n candidates holds m = min(n, K) different indices of its candidates, in any order, and then -1.
Its boundary is the value of the m-th largest candidate. The row is right if it holds every candidate above
the boundary and none below. Candidates equal to the boundary are interchangeable: a sum of ReLUs is exactly
0.0 at many positions, and -0.0 equals 0.0. A NaN is neither above nor below, so that a kernel may select it
or not; the row's other indices must then be those of the largest numbers.

The figures of a result compare values, not indices: those that a row selects, in descending order, with those
of a right selection. An exchange of equal candidates so counts as nothing. -inf stands for an index that a
row lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.location import Location
from gdnbench.judge.metrics import Worst
from gdnbench.judge.result import TensorResult
from gdnbench.judge.row_source import Memory, RowSource
from gdnbench.judge.tensor import Subject, measured_result, shape_mismatch
from gdnbench_kernels.contract import PADDING, Selection

ELEMENTS_AT_ONCE = 1 << 24
"""Candidates that are ranked at once: in fp32 with their places some 0.3 GB."""


@dataclass(frozen=True, slots=True)
class SetRows:
    """Consecutive rows of a set output, checked: masks [R, K] of wrong entries, and values [R, K] in
    descending order, zero from entry m on."""

    start: int  # the number of the first row
    candidates: Tensor  # [R, N], from each row's first; -inf past its last
    count: Tensor  # int64 [R]: how many candidates each row has
    need: Tensor  # int64 [R]: m, how many indices each row must hold
    indices: Tensor  # int64 [R, K]
    outside: Tensor  # neither an index of a candidate nor -1
    repeated: Tensor  # an index that an earlier entry of the row has
    absent: Tensor  # -1 before entry m
    spare: Tensor  # an index from entry m on
    below: Tensor  # an index of a candidate below the boundary
    lacking: Tensor  # int64 [R]: how many candidates above the boundary the row does not select
    boundary: Tensor  # [R]; +inf where NaNs fill the row
    selected: Tensor  # the selected values
    right: Tensor  # those of a right selection

    @property
    def well_formed(self) -> Tensor:
        """bool [R]: which rows hold m different indices of candidates, then -1."""
        return ~(self.outside | self.repeated | self.absent | self.spare).any(1)


def check_rows(selection: Selection, indices: Tensor, start: int, stop: int) -> SetRows:
    """Check `indices` [R, K], rows [start, stop) of a set output."""
    first, count = selection.first[start:stop].cpu(), selection.count[start:stop].cpu()
    idx, k = indices.long(), indices.shape[1]
    candidates = _candidates(selection.values[start:stop].cpu(), first, count)
    need = count.clamp(max=k)
    position = torch.arange(k).expand_as(idx)
    needed = position < need.unsqueeze(1)
    inside = (idx >= 0) & (idx < count.unsqueeze(1))
    repeated = _repeated(idx, inside)
    counts = inside & ~repeated & needed
    values = _at(candidates, idx, counts)
    nans = (counts & values.isnan()).sum(1, keepdim=True)
    # NaNs rank last, as candidates that are not there do; `numbers` is how many rank before them.
    numbers = (count - candidates.isnan().sum(1)).unsqueeze(1)
    ranked = _largest(candidates.nan_to_num(-torch.inf, torch.inf, -torch.inf), k)
    ranked_needed = torch.minimum(need.unsqueeze(1) - nans, numbers)
    boundary = torch.where(ranked_needed > 0, _at(ranked, ranked_needed - 1, ranked_needed > 0), torch.inf)
    above = (position < ranked_needed) & (ranked > boundary)
    right = torch.where(position < nans, torch.nan, _at(ranked, position - nans, position >= nans))
    return SetRows(
        start=start,
        candidates=candidates,
        count=count,
        need=need,
        indices=idx,
        outside=~inside & (idx != PADDING),
        repeated=repeated & needed,
        absent=(idx == PADDING) & needed,
        spare=inside & ~needed,
        below=counts & (values < boundary),
        lacking=above.sum(1) - (counts & (values > boundary)).sum(1),
        boundary=boundary.squeeze(1),
        selected=_shown(values.where(counts, -torch.inf).sort(1, descending=True).values, needed),
        right=_shown(right, needed),
    )


def _candidates(values: Tensor, first: Tensor, count: Tensor) -> Tensor:
    """[R, N]: each row's candidates from its first, then -inf; N is 1 or more."""
    place = torch.arange(max(1, int(count.max()) if len(count) else 1)).unsqueeze(0)
    there = place < count.unsqueeze(1)
    return _at(values, first.unsqueeze(1) + place, there).masked_fill(~there, -torch.inf)


def _at(values: Tensor, places: Tensor, where: Tensor) -> Tensor:
    """values[r, places[r, j]] where `where`, else 0."""
    if not values.shape[1]:
        return values.new_zeros(where.shape)
    return values.gather(1, places.where(where, 0)).where(where, 0)


def _largest(values: Tensor, k: int) -> Tensor:
    """The k largest values of each row in descending order; -inf where it has fewer."""
    found = values.topk(min(k, values.shape[1]), dim=1).values
    return torch.nn.functional.pad(found, (0, k - found.shape[1]), value=-torch.inf)


def _repeated(indices: Tensor, inside: Tensor) -> Tensor:
    """Which indices of candidates an earlier entry of the row has."""
    ordered, order = indices.sort(dim=1, stable=True)
    again = torch.zeros_like(inside)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(inside).scatter(1, order, again) & inside


def _shown(values: Tensor, needed: Tensor) -> Tensor:
    """Values of entries that must hold an index, else 0; 0 also for -0."""
    return values.where(needed, 0) + 0.0


def judge_selection(subject: Subject, tensor: Tensor, selection: Selection) -> TensorResult:
    """Judge set output `tensor` [R, K], on the CPU, by the rules of the module's docstring."""
    unmatched = _wrong_form(subject, Memory(tensor), selection)
    if unmatched is not None:
        return unmatched
    faults = [_Fault(*words) for words in _FAULTS]
    selected, right, unequal = [], [], 0
    for rows in _checked(selection, Memory(tensor)):
        owned = _owned(subject, rows)
        for fault in faults:
            fault.count(rows, owned)
        wrong = rows.outside | rows.repeated | rows.absent | rows.spare | rows.below
        unequal += int((wrong & owned.unsqueeze(1)).sum())
        selected.append(rows.selected)
        right.append(rows.right)
    measured = _measured(subject, tensor, selected, right)
    reasons = tuple(fault.text for fault in faults if fault.rows)
    worst = next((fault.first for fault in faults if fault.first is not None), None)
    return replace(measured, reasons=reasons, unequal=unequal, worst=worst or measured.worst)


def compare_selections(
    subject: Subject,
    tensor: RowSource,
    target: RowSource,
    selection: Selection | None,
    tolerance: Tolerance | None = None,
) -> TensorResult:
    """Compare two set outputs: each row must hold the same indices, in any order, or be well-formed on both
    sides and select equal values; values may differ by `tolerance`. Without `selection` the values are
    unknown, and only the same indices are equal."""
    unmatched = shape_mismatch(subject, tensor, target)
    if unmatched is None and selection is not None:
        unmatched = _wrong_form(subject, tensor, selection)
    if unmatched is not None:
        return unmatched
    rows = tensor.shape[0]
    x, y = (source.read_rows(0, rows).long() for source in (tensor, target))
    unlike = (x.sort(1).values != y.sort(1).values).any(1)
    measured = None
    if selection is not None:
        ours, theirs = list(_checked(selection, Memory(x))), list(_checked(selection, Memory(y)))
        sides = [[one.selected for one in side] for side in (ours, theirs)]
        measured = _measured(subject, x, *sides)
        for one, other in zip(ours, theirs, strict=True):
            same = one.well_formed & other.well_formed & _within(one.selected, other.selected, tolerance)
            unlike[one.start : one.start + len(same)] &= ~same
    owned = torch.zeros(rows, dtype=torch.bool)
    for region in subject.partition.regions:
        owned[region.start : region.stop] = True
    reason = _unlike_text(x, y, unlike & owned, int(owned.sum()), selection)
    if measured is None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        measured = TensorResult(subject.name, subject.when, subject.side, dtype, tensor.shape)
    differing = (unlike & owned).nonzero().squeeze(1).tolist()
    unequal = sum(len(set(x[row].tolist()) - set(y[row].tolist())) for row in differing)
    return replace(measured, reasons=reason, unequal=unequal)


def selected_values(selection: Selection, rows: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """What `indices` [n, K] select in the rows `rows` [n] of a call: bool [n], whether each is well-formed,
    and the values [n, K] in descending order."""
    part = Selection(*(x.cpu()[rows] for x in (selection.values, selection.first, selection.count)))
    found = check_rows(part, indices.cpu(), 0, len(rows))
    return found.well_formed, found.selected


def _within(x: Tensor, y: Tensor, tolerance: Tolerance | None) -> Tensor:
    """bool [R]: whether all values of a row are equal, or within the tolerance."""
    close = (x == y) | (x.isnan() & y.isnan())
    if tolerance is not None:
        wide = y.double()
        close |= (x.double() - wide).abs() <= tolerance.abs + tolerance.rel * wide.abs()
    return close.all(1)


def _unlike_text(
    x: Tensor, y: Tensor, unlike: Tensor, rows: int, selection: Selection | None
) -> tuple[str, ...]:
    if not bool(unlike.any()):
        return ()
    row = int(unlike.nonzero()[0])
    left, right = (set(side[row].tolist()) for side in (x, y))
    only = [
        f"only {name} has {_some(sorted(indices), row, selection)}"
        for name, indices in (("x", left - right), ("y", right - left))
        if indices
    ]
    words = "; ".join(only) or "one side repeats an index"
    unknown = "" if selection is not None else " (their values were not recorded)"
    return (f"{int(unlike.sum())} of {rows} rows select other indices; first row {row}: {words}{unknown}",)


def _some(indices: list[int], row: int, selection: Selection | None) -> str:
    """Up to three indices, with their values where they are known."""
    shown = []
    for index in indices[:3]:
        known = selection is not None and 0 <= index < int(selection.count[row])
        value = f" ({_value(selection, row, index)})" if known and selection is not None else ""
        shown.append(f"{index}{value}")
    return ", ".join(shown) + (f" and {len(indices) - 3} more" if len(indices) > 3 else "")


def _value(selection: Selection, row: int, index: int) -> str:
    return f"{float(selection.values[row, int(selection.first[row]) + index]):.9g}"


def _wrong_form(subject: Subject, tensor: RowSource, selection: Selection) -> TensorResult | None:
    """A failing result if the tensor is not rows of integers, one for each of the call's."""
    shape, rows = tensor.shape, len(selection.count)
    name = str(tensor.dtype).removeprefix("torch.")
    if len(shape) != 2 or shape[0] != rows:
        reason = f"shape {list(shape)}; a set output of this call has {rows} rows of indices"
    elif tensor.dtype not in (torch.int32, torch.int64):
        reason = f"dtype {name}; a set output is int32 or int64"
    else:
        return None
    return TensorResult(subject.name, subject.when, subject.side, name, shape, reasons=(reason,))


def _checked(selection: Selection, tensor: RowSource) -> Iterator[SetRows]:
    """The rows of a set output in order, a part at a time."""
    rows, width = tensor.shape[0], max(1, selection.values.shape[1], tensor.shape[1])
    step = max(1, ELEMENTS_AT_ONCE // width)
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        yield check_rows(selection, tensor.read_rows(start, stop), start, stop)


def _owned(subject: Subject, rows: SetRows) -> Tensor:
    """bool [R]: the rows that belong to the call."""
    owned = torch.zeros(len(rows.count), dtype=torch.bool)
    for region in subject.partition.regions:
        owned[max(0, region.start - rows.start) : max(0, region.stop - rows.start)] = True
    return owned


def _measured(subject: Subject, tensor: Tensor, x: list[Tensor], y: list[Tensor]) -> TensorResult:
    """The result without reasons: figures of values x against y, parts of rows."""
    if not x:
        x = y = [torch.zeros(tensor.shape)]
    left, right = Memory(torch.cat(x)), Memory(torch.cat(y))
    comparison = subject.compare(left, right)
    found = measured_result(subject, Memory(tensor), comparison, ())
    return replace(found, ulp_histogram=(), grid=subject.grid_of(left, right, comparison))


_FAULTS = (
    ("outside", "hold what is no index of a candidate"),
    ("repeated", "hold an index twice"),
    ("absent", "lack an index"),
    ("spare", "hold an index where -1 belongs"),
    ("below", "select a candidate below the boundary"),
    ("lacking", "do not select a candidate above the boundary"),
)
"""Fields of `SetRows`, and what rows do where they are not zero."""


@dataclass(slots=True)
class _Fault:
    """A kind of fault: its rows, and the first of them."""

    kind: str
    words: str
    rows: int = 0
    of: int = 0
    first: Worst | None = None
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.rows} of {self.of} rows {self.words}; first {self.detail}"

    def count(self, rows: SetRows, owned: Tensor) -> None:
        """Add checked rows, of which the `owned` ones count."""
        self.of += int(owned.sum())
        found = getattr(rows, self.kind)
        wrong = (found.any(1) if found.ndim == 2 else found > 0) & owned
        if not bool(wrong.any()):
            return
        if not self.rows:
            self._describe(rows, int(wrong.nonzero()[0]))
        self.rows += int(wrong.sum())

    def _describe(self, rows: SetRows, row: int) -> None:
        n, m = int(rows.count[row]), int(rows.need[row])
        if self.kind == "lacking":
            index = _most_lacked(rows, row)
            entry = m - 1
        else:
            entry = int(getattr(rows, self.kind)[row].nonzero()[0])
            index = int(rows.indices[row, entry])
        value = float(rows.candidates[row, index]) if 0 <= index < n else float("nan")
        edge = float(rows.boundary[row]) + 0.0  # -0 is 0
        number = rows.start + row
        if self.kind == "outside":
            words = f"entry {entry} is {index}; the row has {n} candidates"
        elif self.kind == "repeated":
            before = int((rows.indices[row] == index).nonzero()[0])
            words = f"entry {entry} is index {index} ({value:.9g}), which entry {before} is too"
        elif self.kind == "absent":
            words = f"entry {entry} is {PADDING}; {n} candidates make its first {m} entries indices"
        elif self.kind == "spare":
            words = f"entry {entry} is {index}; {n} candidates make its entries from {m} on {PADDING}"
        else:
            place = f"entry {entry}" if self.kind == "below" else "not among its entries"
            words = (
                f"index {index} ({value:.9g}) is {place}; the boundary, the least of the {m} largest of {n},"
                f" is {edge:.9g}"
            )
            ties = int((rows.candidates[row, :n] == edge).sum())
            words += f", which {ties} candidates have" if ties > 1 else ""
        self.detail = f"row {number}: {words}"
        location = Location((number, entry), number, None, None, None, ())
        self.first = Worst(location, value, edge, None)


def _most_lacked(rows: SetRows, row: int) -> int:
    """The index of the largest candidate that the row does not select."""
    n = int(rows.count[row])
    left = rows.candidates[row, :n].nan_to_num(-torch.inf, torch.inf, -torch.inf).clone()
    held = rows.indices[row]
    left[held[(held >= 0) & (held < n)]] = -torch.inf
    return int(left.argmax())
