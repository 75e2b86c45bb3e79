# SPDX-License-Identifier: Apache-2.0
"""Decides whether a smaller record fails in the same way as the original."""

from __future__ import annotations

from dataclasses import dataclass

from gdnbench.bisect.failing import NOT_FINITE, VALUES
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.report.outcome import Outcome

LEAST_SHARE = 0.25
"""A relative error is of the same fault if it is at least this share of what it was. Leaving out what is
right makes it larger; where a candidate's is much smaller, its limit became small by chance (a result of
zeros, one on which torch is exact), and what exceeds it is rounding.

A quarter is what simpler values may cost. To the nearest power of two in the logarithm (`values`) an element
changes by a factor from 1/sqrt 2 to sqrt 2. So do the RMS of the error and that of the result, where they are
linear in the tensor and nothing cancels, and their quotient changes by a factor from 1/2 to 2. Outputs and
states are linear in products of two tensors, such as values and keys, which may both be simplified."""
ALL_WRONG = 1.0
"""From this relative error on nothing of a result is right, and how much larger an error is says nothing of
the fault: one that grows from token to token is smaller by orders of magnitude in a shorter record, and
overflows in a longer one."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What identifies a failure. `error`: for a crash, the exception's name or how the process ended.
    `tensors`: those that fail. `ways`: see `failing`. `relative`: the largest relative error of a tensor that
    fails by its values. `findings`: those of the checker, as a baseline names them, by the symptom `race`."""

    kind: str
    error: str = ""
    tensors: frozenset[str] = frozenset()
    ways: frozenset[str] = frozenset()
    relative: float | None = None
    findings: frozenset[str] = frozenset()

    @classmethod
    def of_verdict(cls, verdict: Verdict) -> Signature:
        failing = verdict.facts.get("failing", [])
        values = [
            entry["relative"]
            for entry in failing
            if VALUES in entry["ways"] and entry.get("relative") is not None
        ]
        return cls(
            verdict.kind,
            verdict.reason.partition(":")[0] if verdict.kind == Outcome.CRASH else "",
            frozenset(entry["tensor"] for entry in failing),
            frozenset(way for entry in failing for way in entry["ways"]),
            max(values, default=None),
            frozenset(verdict.facts.get("findings", ())),
        )

    def is_shown_by(self, verdict: Verdict, same_tensor: bool) -> bool:
        """Whether `verdict` is the same failure: the same kind; for a crash the same error; one of the same
        findings, by the symptom `race`; for a mismatch one of the same ways and a relative error that is not
        much smaller, or, for results that are not finite, values of which nothing is right; and with
        `same_tensor` a tensor that failed before."""
        if verdict.state is not State.BAD:
            return False
        other = Signature.of_verdict(verdict)
        if (other.kind, other.error) != (self.kind, self.error):
            return False
        if self.findings and not self.findings & other.findings:
            return False
        if same_tensor and self.tensors and not self.tensors & other.tensors:
            return False
        shared = self.ways & other.ways
        if VALUES not in shared:
            overflows = NOT_FINITE in self.ways and (other.relative or 0.0) >= ALL_WRONG
            return bool(shared) or not self.ways or overflows
        if shared == {VALUES} and self.relative is not None and other.relative is not None:
            return other.relative >= LEAST_SHARE * min(self.relative, ALL_WRONG)
        return True
