# SPDX-License-Identifier: Apache-2.0
"""Makes a failing call smaller and simpler as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from gdnbench.bisect.ddmin import fewest
from gdnbench.bisect.input import values
from gdnbench.bisect.input.failure import Signature
from gdnbench.bisect.input.probing import Candidate, CandidateProber
from gdnbench.bisect.verdict import Verdict
from gdnbench.errors import BAD_INPUT_ERRORS
from gdnbench_kernels.contract import Axis, Call, ContractError, Shrinking

COARSE = 8
"""Parts that every axis is cut into before one of them is cut into single units: a probe of a small record is
a fraction of one of a large."""


class Shrinker:
    """`best` is the smallest candidate so far, at any time, and `verdict` the verdict on it, None until
    `begin`; `steps` are the reductions that led to it, `simplified` says what became of a tensor's values."""

    def __init__(
        self,
        prober: CandidateProber,
        candidate: Candidate,
        failure: Signature,
        same_tensor: bool = False,
        takes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.best = candidate
        self.verdict: Verdict | None = None
        self.steps: list[str] = []
        self.simplified: dict[str, str] = {}
        self._prober = prober
        self._operation = prober.operation
        self._failure = failure
        self._same_tensor = same_tensor
        self._takes = takes or {}

    def check_failure(self) -> bool:
        """Whether the first candidate fails in the same way as the original."""
        return self._try("the record by itself", self.best, counts=False)

    def shrink(self) -> None:
        """Removes and simplifies until nothing more can go."""
        self._conventions()
        self._layouts()
        self._structure(COARSE)
        while True:
            while self._structure(None):
                pass
            if not self._values() or not self._structure(None):
                return

    def _try(self, label: str, candidate: Candidate, counts: bool = True) -> bool:
        """Whether the candidate fails in the same way; then it is the best. One that its operation or the
        kernel refuses does not."""
        try:
            self._operation.validate(candidate.call)
            verdict = self._prober.verdict(label, candidate)
        except (ContractError, *BAD_INPUT_ERRORS):
            return False
        if not self._failure.is_shown_by(verdict, self._same_tensor):
            return False
        self.best, self.verdict = candidate, verdict
        if counts:
            self.steps.append(label)
        return True

    def _conventions(self) -> None:
        """To those that the kernel takes: what a replay does every time is then done once."""
        for convention in self._operation.conventions:
            name, call = convention.name, self.best.call
            accepted = self._takes.get(name, convention.values[:1])
            current = call.conventions.get(name, convention.values[0])
            if current in accepted:
                continue
            try:
                converted = self._operation.convert(call, {name: accepted[0]})
            except ContractError:
                continue
            self._try(f"{name} from {current} to {accepted[0]}", replace(self.best, call=converted))

    def _layouts(self) -> None:
        """The fewest tensors that must lie as the caller's did."""
        base = self.best
        laid = sorted(base.laid)

        def fails(kept: Sequence[int]) -> bool:
            names = [laid[unit] for unit in kept]
            what = f"strides of {', '.join(names)} alone" if names else "contiguous tensors"
            return self._try(what, replace(base, laid=frozenset(names)))

        if laid:
            fewest(len(laid), fails, least=0)

    @property
    def _shrinking(self) -> Shrinking:
        assert self._operation.shrinking is not None
        return self._operation.shrinking

    def _axes(self) -> tuple[Axis, ...]:
        return self._shrinking.axes(self._operation, self.best.call)

    def _structure(self, parts: int | None) -> bool:
        """One round over the axes; whether any became shorter."""
        before = len(self.steps)
        for index in range(len(self._axes())):
            axis, base = self._axes()[index], self.best
            if axis.units > axis.least and not (axis.of_pool and base.places):
                self._along(axis, base, parts)
        return len(self.steps) > before

    def _along(self, axis: Axis, base: Candidate, parts: int | None) -> None:
        def fails(kept: Sequence[int]) -> bool:
            try:
                call = axis.keep(kept)
            except ContractError:
                return False
            return self._try(
                f"{axis.name}: {spans(kept)} of {axis.units}",
                replace(base, call=call, laid=_there(base, call)),
            )

        fewest(axis.units, fails, axis.least, parts, self._suspect(axis))

    def _suspect(self, axis: Axis) -> int | None:
        """The unit with the worst place of the first tensor that fails in the smallest record so far."""
        failing = [] if self.verdict is None else self.verdict.facts.get("failing", [])
        place = next((entry["at"] for entry in failing if entry.get("at")), None)
        unit = None if place is None else axis.unit_at(place)
        return unit if unit is not None and 0 <= unit < axis.units else None

    def _values(self) -> bool:
        """One round over the tensors; whether any became simpler."""
        before = len(self.steps)
        for name, fillings in list(values.fillable(self._operation, self.best.call)):
            if self.simplified.get(name) != values.ZEROS.name and name in self.best.call.tensors:
                self._simplify(name, fillings)
        return len(self.steps) > before

    def _simplify(self, name: str, fillings: Sequence[values.Filling]) -> None:
        if any(self._fill(name, filling) for filling in fillings if not filling.keeps_zeros):
            return
        self._fill_rows(name)
        any(self._fill(name, filling) for filling in fillings if filling.keeps_zeros)

    def _fill(self, name: str, filling: values.Filling) -> bool:
        """The whole tensor; True also where it is that simple already."""
        call = self.best.call
        simple = values.filled(self._operation, call, name, filling)
        if values.same_bits(call, name, simple):
            self.simplified.setdefault(name, filling.name)
            return True
        whole = values.with_rows_kept(call, name, simple, 0, ())
        if self._try(f"{name}: {filling.name}", replace(self.best, call=whole)):
            self.simplified[name] = filling.name
            return True
        return False

    def _fill_rows(self, name: str) -> None:
        """Zeros in as many rows of each axis in turn as can be."""
        for axis in range(self.best.call.tensors[name].ndim):
            base = self.best
            size = base.call.tensors[name].shape[axis]
            simple = values.filled(self._operation, base.call, name, values.ZEROS)

            def fails(
                kept: Sequence[int], axis: int = axis, base: Candidate = base, size: int = size
            ) -> bool:
                call = values.with_rows_kept(base.call, name, simple, axis, kept)  # noqa: B023 - called here
                label = f"{name}: zeros but for {spans(kept)} of {size} along axis {axis}"
                return self._try(label, replace(base, call=call))

            if size > 1 and len(fewest(size, fails, least=0, parts=values.MOST_PARTS)) < size:
                self.simplified[name] = "zeros in part"


def _there(candidate: Candidate, call: Call) -> frozenset[str]:
    return candidate.laid & call.tensors.keys()


def spans(units: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"; many spans are counted."""
    if not units:
        return "none"
    starts = [units[0], *(after for before, after in pairwise(units) if after != before + 1)]
    ends = [*(before for before, after in pairwise(units) if after != before + 1), units[-1]]
    found = [str(one) if one == last else f"{one}-{last}" for one, last in zip(starts, ends, strict=True)]
    return ", ".join(found) if len(found) <= 4 else f"{len(units)}"
