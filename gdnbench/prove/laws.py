# SPDX-License-Identifier: Apache-2.0
"""Tests whether the laws of an operation hold between a kernel's results on related calls.

A law says that two calls have the same exact result in some rows, whatever that result is, such as: later
tokens do not change earlier outputs. So this finds errors that a wrong oracle would hide.

The limit. Let y be the exact rows, and x and x' what the kernel computed of them in the two calls. If each
result may be off by e, then |x - x'| <= |x - y| + |x' - y| <= 2 e. e is k times the error of the same-dtype
torch kernel on the first call, plus u |y|, with k = 2 and the unit roundoff u of the dtype, for the RMS error
of each (sequence, head) and for its largest error; a tolerance of the contract replaces it. Replay's limits
(`gdnbench.judge.limits`) have a smaller floor, but allow for luck in torch's error. The exact rows and
torch's depend on nothing that a law changes, so that both calls have the same e. Oracle and torch run only if
a kernel's results differ at all; those of most kernels have the same bits. Laws change the rest of the call
by so much (see `gdnbench_kernels.gdn_laws`) that a small leak exceeds such a limit.

A law that is `exact` compares values: the kernel computes the same numbers from the same numbers.

Rows that are a power of two, f, times others are divided by it first, which is exact in fp64. The limit stays
2 e: relative errors of both calls are equal, and f > 1 only lessens those of underflow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from gdnbench.judge.limits import unit_roundoff
from gdnbench.judge.record import ORACLE, YARDSTICK
from gdnbench.judge.rule import Bound
from gdnbench.judge.selection import selected_values
from gdnbench.judge.valid_rows import clear_stale, wrong_shapes
from gdnbench.prove.records import write_calls
from gdnbench.prove.result import Check, Section
from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.replay.replay import runner
from gdnbench.report.outcome import Outcome
from gdnbench.store.recover import open_store
from gdnbench_kernels.contract import Call, Index, Operation, Piece, Split, Variant
from gdnbench_kernels.run import run_kernel

PASS = Outcome.PASS
SPLIT = "split"
SHOWN = 4
"""The number of pieces that a failing check names."""

_Run = Callable[[int], "Execution | Failure"]
"""Runs the kernel on the call of a number."""


@dataclass(slots=True)
class Exact:
    """Oracle and torch's results of a call, computed when they are first needed. `handed`: the conventions in
    which the kernel was handed the call; both compute from the same values."""

    operation: Operation
    call: Call
    handed: Mapping[str, str]
    _results: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    _leeway: dict[str, Tensor | None] = field(default_factory=dict)

    def results(self, kernel: str) -> dict[str, Tensor]:
        """The results of one of the operation's kernels, in the call's conventions."""
        if kernel not in self._results:
            results = self._back(run_kernel(self.operation, kernel, self._given()))
            self._results[kernel] = clear_stale(self.operation, self.call, results)
        return self._results[kernel]

    def limits(self, tensor: str, at: Index, head_axis: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """By how much rows `at` of `tensor` may be off: the RMS and the largest error of each head."""
        exact = _by_head(self.results(ORACLE)[tensor][at].double(), head_axis)
        tolerance = self.operation.tolerances.get(tensor)
        if tolerance is not None:
            allowed = tolerance.absolute + tolerance.relative * exact.abs()
            return _rms(allowed), _largest(allowed)
        torchs = _by_head(self.results(YARDSTICK)[tensor][at].double(), head_axis) - exact
        unit, tiny = unit_roundoff(dtype)
        k = Bound().k
        rms = k * _rms(torchs) + unit * _rms(exact) + tiny
        largest = k * _largest(torchs) + unit * _largest(exact) + tiny
        leeway = self._leeway_of(tensor)
        if leeway is not None:
            more = _by_head(leeway[at], head_axis)
            rms, largest = rms + _rms(more), largest + _largest(more)
        return rms, largest

    def finite(self, tensor: str, at: Index) -> Tensor:
        """Which elements of the rows are finite, exactly and in torch's result."""
        oracle, torchs = (self.results(kernel)[tensor][at] for kernel in (ORACLE, YARDSTICK))
        return torch.isfinite(oracle.to(torchs.dtype)) & torch.isfinite(torchs)

    def selects_otherwise(self, piece: Piece, x: Tensor, y: Tensor) -> str:
        """How rows `x` of a set output and rows `y` of another call select other values of the first call's
        candidates; empty if they select the same. A law changes no candidate's place in its row."""
        selection = self.operation.selections[piece.tensor](self.call)
        rows = torch.arange(len(selection.count))[piece.one[0]].reshape(-1)
        sides = [selected_values(selection, rows, of.reshape(len(rows), -1)) for of in (x, y)]
        (formed, ours), (formed_too, theirs) = sides
        unlike = ~(formed & formed_too & ((ours == theirs) | (ours.isnan() & theirs.isnan())).all(1))
        if not bool(unlike.any()):
            return ""
        row = int(unlike.nonzero()[0])
        left, right = (set(of.reshape(len(rows), -1)[row].tolist()) for of in (x, y))
        only = "; ".join(
            f"{len(indices)} only in the {call} call, such as {min(indices)}"
            for call, indices in (("first", left - right), ("other", right - left))
            if indices
        )
        return f"{piece.tensor} of {piece.where}: other indices are selected: {only or 'one is repeated'}"

    def _leeway_of(self, tensor: str) -> Tensor | None:
        if tensor not in self._leeway:
            found = self.operation.leeway(self._given(), tensor)
            self._leeway[tensor] = None if found is None else self._back({tensor: found})[tensor].double()
        return self._leeway[tensor]

    def _given(self) -> Call:
        return self.operation.convert(self.call, {**self._own(), **self.handed})

    def _own(self) -> dict[str, str]:
        return self.operation.default_conventions | dict(self.call.conventions)

    def _back(self, results: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.operation.convert_outputs(results, {**self._own(), **self.handed}, self._own())


def _by_head(rows: Tensor, head_axis: int) -> Tensor:
    """[heads, elements]."""
    by_head = rows.movedim(head_axis, 0)
    return by_head.flatten(1) if by_head.ndim > 1 else by_head.unsqueeze(1)


def _rms(values: Tensor) -> Tensor:
    """The root mean square of each row, over its finite elements."""
    finite = values.isfinite()
    squares = torch.where(finite, values, 0.0).square().sum(1)
    return (squares / finite.sum(1).clamp(min=1)).sqrt()


def _largest(values: Tensor) -> Tensor:
    """The largest magnitude of each row, over its finite elements."""
    magnitudes = torch.where(values.isfinite(), values.abs(), 0.0)
    return magnitudes.amax(1) if magnitudes.shape[1] else magnitudes.sum(1)


@dataclass(frozen=True, slots=True)
class Difference:
    """A piece that differs between two calls. `ratio`: the difference over its limit. `text` says how, if it
    is `wrong`."""

    ratio: float
    wrong: bool = False
    text: str = ""


def differences(
    pieces: Sequence[Piece],
    one: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    exact: Exact,
    *,
    bits: bool = False,
    earlier: Exact | None = None,
) -> list[Difference]:
    """The pieces of results `one` and `other` that differ. `exact`: of the first call. `bits`: they must not
    differ at all. `earlier`: of the call that computed the states which the other call starts from."""
    found = []
    for piece in pieces:
        if piece.tensor not in one or piece.tensor not in other:
            found.append(Difference(float("inf"), True, f"{piece.tensor} is not among the outputs"))
            continue
        x, y = one[piece.tensor][piece.one], other[piece.tensor][piece.other]
        if x.shape != y.shape or x.dtype != y.dtype:
            shapes = f"shape {list(x.shape)} and {list(y.shape)}"
            found.append(Difference(float("inf"), True, f"{piece.tensor} of {piece.where}: {shapes}"))
            continue
        if piece.tensor in exact.operation.selections:
            unlike = exact.selects_otherwise(piece, x, y)
            if unlike:
                found.append(Difference(float("inf"), True, unlike))
            continue
        stale = exact.operation.stale(exact.call, piece.tensor, tuple(one[piece.tensor].shape))
        if stale is not None:
            x, y = (rows.masked_fill(stale[piece.one], 0) for rows in (x, y))
        if piece.factor != 1:
            x, y = x.double(), y.double() / piece.factor
        unequal = (x != y) & ~(x.isnan() & y.isnan())
        if bits and piece.underflow:
            unequal &= ~((x.double() - y.double()).abs() <= piece.underflow)
        if not bool(unequal.any()):
            continue
        if bits:
            found.append(Difference(float("inf"), True, _unequal_text(piece, x, y, unequal)))
        else:
            dtype = one[piece.tensor].dtype
            found.append(_beyond_rounding(piece, x, y, dtype, unequal, exact, earlier))
    return found


def _unequal_text(piece: Piece, x: Tensor, y: Tensor, unequal: Tensor, what: str = "differ") -> str:
    first = tuple(int(i) for i in unequal.nonzero()[0])
    return (
        f"{piece.tensor} of {piece.where}: {int(unequal.sum())} of {unequal.numel()} elements {what},"
        f" first {list(first)}: {float(x[first]):.9g} and {float(y[first]):.9g}"
    )


def _beyond_rounding(
    piece: Piece,
    x: Tensor,
    y: Tensor,
    dtype: torch.dtype,
    unequal: Tensor,
    exact: Exact,
    earlier: Exact | None,
) -> Difference:
    usable = exact.finite(piece.tensor, piece.one)
    odd = unequal & usable & ~(x.isfinite() & y.isfinite())
    if bool(odd.any()):
        text = _unequal_text(piece, x, y, odd, "are NaN or infinite in one call")
        return Difference(float("inf"), True, text)
    moved = torch.where(usable, x.double() - y.double(), 0.0)
    by_head = _by_head(moved, piece.head_axis)
    rms, largest = exact.limits(piece.tensor, piece.one, piece.head_axis, dtype)
    kinds = {"RMS": (_rms(by_head), 2 * rms)}
    if piece.carried is None:
        kinds["largest"] = (_largest(by_head), 2 * largest)
    else:
        assert earlier is not None
        carried = piece.carried
        of_state, _ = earlier.limits(
            carried.tensor, carried.at, 0, earlier.results(YARDSTICK)[carried.tensor].dtype
        )
        kinds["RMS"] = (_rms(by_head), 2 * rms + carried.factor * of_state)
    ratios = {name: error / limit for name, (error, limit) in kinds.items()}
    worst = max(ratios, key=lambda name: float(ratios[name].max()))
    head = int(ratios[worst].argmax())
    ratio = float(ratios[worst][head])
    error, limit = (float(values[head]) for values in kinds[worst])
    text = f"{piece.tensor} of {piece.where}: {worst} difference of head {head}, {error:.3g} over {limit:.3g}"
    return Difference(ratio, ratio > 1, text)


@dataclass(frozen=True, slots=True)
class _Base:
    """A call with its variants and splits; `first` is the number of its record, which theirs follow."""

    name: str
    call: Call
    variants: tuple[Variant, ...]
    splits: tuple[Split, ...]
    first: int

    @property
    def calls(self) -> Iterator[tuple[str, Call]]:
        yield self.name, self.call
        for variant in self.variants:
            yield f"{self.name}, {variant.what}", variant.call
        for split in self.splits:
            yield f"{self.name}, split {split.what}", split.first

    @property
    def runs(self) -> int:
        """How often the kernel is called, second parts included."""
        return 1 + len(self.variants) + 2 * len(self.splits)


@dataclass(frozen=True, slots=True)
class _Half:
    """A split whose first part was run. `check` has what was found so far."""

    split: Split
    whole: Execution
    exact: Exact
    earlier: Exact
    call: Call
    check: Check


@dataclass(slots=True)
class LawTester:
    """Tests the laws of an operation for a kernel, which runs as `replay` runs it. `found` takes each check,
    `progress` how many calls were made, of how many."""

    operation: Operation
    kernel: str
    on: str
    found: Callable[[Check], None]
    isolate: bool | None = None
    timeout: float | None = None
    progress: Callable[[int, int], None] = lambda done, total: None
    _done: int = 0
    _total: int = 0

    def test(self, calls: Sequence[tuple[str, Call]]) -> None:
        """Test the laws on each of the named calls. Raises as `replay` does."""
        bases: list[_Base] = []
        for name, call in calls:
            last = bases[-1] if bases else None
            first = 0 if last is None else last.first + len(list(last.calls))
            bases.append(self._base(name, call, first))
        self._done, self._total = 0, sum(base.runs for base in bases)
        halves: list[_Half] = []
        with TemporaryDirectory(prefix="gdnbench-laws-") as folder:
            named = [one for base in bases for one in base.calls]
            with self._running(Path(folder) / "laws.zarr", named) as run:
                for base in bases:
                    halves += self._test_base(base, run)
            seconds = [(half.check.subject, half.call) for half in halves]
            if seconds:
                with self._running(Path(folder) / "second.zarr", seconds) as run:
                    for number, half in enumerate(halves):
                        self.found(self._tested_half(half, run(number)))

    def _base(self, name: str, call: Call, first: int) -> _Base:
        laws = self.operation.laws
        if laws is None:
            return _Base(name, call, (), (), first)
        splits = () if laws.splits is None else tuple(laws.splits(self.operation, call))
        return _Base(name, call, tuple(laws.variants(self.operation, call)), splits, first)

    @contextmanager
    def _running(self, path: Path, calls: Sequence[tuple[str, Call]]) -> Iterator[_Run]:
        """Yields the function that runs the kernel on the call of a number. The calls keep all rows of their
        pools: a law says what must happen to rows that a call does not name."""
        write_calls(path, self.operation.name, calls, whole=True)
        with (
            open_store(path) as store,
            closing(
                runner(store, self.kernel, self.on, isolate=self.isolate, timeout=self.timeout)
            ) as running,
        ):

            def run(number: int) -> Execution | Failure:
                left = running.run_record(store.records[number], self.operation)
                if isinstance(left, Execution):
                    shapes = wrong_shapes(self.operation, calls[number][1], left.outputs)
                    if shapes:
                        left = Failure(Outcome.MISMATCH, "; ".join(shapes))
                    else:  # a kernel in this process may return the same buffer from every call
                        left = replace(left, outputs={name: x.clone() for name, x in left.outputs.items()})
                self._done += 1
                self.progress(self._done, self._total)
                return left

            yield run

    def _test_base(self, base: _Base, run: _Run) -> list[_Half]:
        """Test the variants of a call, and the first parts of its splits, which are returned."""
        whole = run(base.first)
        if isinstance(whole, Failure) or whole.faults:
            self.found(_without_results(Check(Section.LAWS, "unchanged call", base.name, PASS), whole))
        if isinstance(whole, Failure):
            self._done += base.runs - 1
            return []
        exact = Exact(self.operation, base.call, whole.conventions)
        number = base.first
        for variant in base.variants:
            number += 1
            check = Check(Section.LAWS, variant.law, f"{base.name}, {variant.what}", PASS)
            begin = time.monotonic()
            left = run(number)
            check = _without_results(check, left)
            if isinstance(left, Execution):
                outputs = whole.outputs, left.outputs
                differ = differences(variant.pieces, *outputs, exact, bits=variant.exact)
                check = _with_differences(check, differ)
            self.found(replace(check, seconds=time.monotonic() - begin))
        halves = []
        for split in base.splits:
            number += 1
            check = Check(Section.LAWS, SPLIT, f"{base.name}, {split.what}", PASS, runs=2)
            begin = time.monotonic()
            left = run(number)
            check = _without_results(check, left)
            if isinstance(left, Failure):
                self._done += 1
                self.found(replace(check, runs=1, seconds=time.monotonic() - begin))
                continue
            check = _with_differences(
                check, differences(split.first_pieces, whole.outputs, left.outputs, exact)
            )
            earlier = Exact(self.operation, split.first, left.conventions)
            check = replace(check, seconds=time.monotonic() - begin)
            halves.append(_Half(split, whole, exact, earlier, split.second(left.outputs), check))
        return halves

    def _tested_half(self, half: _Half, left: Execution | Failure) -> Check:
        begin = time.monotonic()
        check = _without_results(half.check, left)
        if isinstance(left, Execution):
            pieces, outputs = half.split.second_pieces, (half.whole.outputs, left.outputs)
            differ = differences(pieces, *outputs, half.exact, earlier=half.earlier)
            check = _with_differences(check, differ)
        return replace(check, seconds=check.seconds + time.monotonic() - begin)


def _without_results(check: Check, left: Execution | Failure) -> Check:
    """`check` with what is wrong whatever the results are: a failure, and writes where no kernel may."""
    if isinstance(left, Failure):
        return replace(check, outcome=left.outcome, reasons=(*check.reasons, left.reason))
    if left.faults:
        return replace(check, outcome=Outcome.MISMATCH, reasons=(*check.reasons, *left.faults))
    return check


def _with_differences(check: Check, found: Sequence[Difference]) -> Check:
    """`check` with the differences of its pieces, the worst first."""
    wrong = sorted((one for one in found if one.wrong), key=lambda one: -one.ratio)
    ratio = max((one.ratio for one in found), default=0.0)
    texts = [one.text for one in wrong[:SHOWN]]
    if len(wrong) > SHOWN:
        texts.append(f"and {len(wrong) - SHOWN} more")
    return replace(
        check,
        outcome=Outcome.MISMATCH if wrong else check.outcome,
        reasons=(*check.reasons, *texts),
        ratio=max(ratio, check.ratio or 0.0),
    )
