# SPDX-License-Identifier: Apache-2.0
"""Finds the commit that made a kernel slower, by its predicted time at each revision.

The endpoints have two times. A commit is slow if its time is nearer to the bad one than to the good one in
ratio: above their geometric mean. A commit whose kernel is wrong, or has no predicted time, is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gdnbench.bisect.commit.probe import NO_START, NOT_THERE
from gdnbench.bisect.commit.repository import Commit
from gdnbench.bisect.commit.search import Narrowed
from gdnbench.bisect.commit.walk import Answer, CommitWalk, commit_lines
from gdnbench.bisect.predicted import TrialTime
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import BadInputError, CannotRunError, Exit
from gdnbench.units import seconds_text

LEAST = 0.01
"""Part by which the endpoints must differ: the default of `gdnbench time --precision`. By default no
measurement would tell a smaller difference from none."""
LOOKS = 2
"""Processes that predict an endpoint. Addresses of tensors differ between them: a tensor may lie in one
sector of memory more."""


class SlowerSearch(CommitWalk):
    """Finds the commit that made the kernel slower."""

    exchanged = "--time finds what made a kernel slower, so give a --bad that came later"

    def _check_ends(self) -> None:
        if self._repository.merge_bases(self._bad.hash, self._good.hash) == [self._bad.hash]:
            self._bases()  # refuses them before anything is simulated
        good, bad = self._looks(self._good, "good"), self._looks(self._bad, "bad")
        self._good_time, self._bad_time = good[0], bad[0]
        if not _apart(good, bad):
            raise BadInputError(self._not_apart(good, bad))
        self._threshold = math.sqrt(good[0].seconds * bad[0].seconds)
        self._session.report(
            f"slow is a predicted time above {seconds_text(self._threshold)}, the geometric mean of the"
            " endpoints' times"
        )

    def _not_apart(self, good: Sequence[TrialTime], bad: Sequence[TrialTime]) -> str:
        what = (
            f"nothing to bisect: {_times(good)} is predicted at --good {self._good.label} and"
            f" {_times(bad)} at --bad {self._bad.label}"
        )
        if _apart(bad, good):
            return f"{what}, which is faster; give a slower --bad"
        return f"{what}, less than {LEAST:.0%} apart; give endpoints or records that differ"

    def _looks(self, commit: Commit, end: str) -> list[TrialTime]:
        """Predicted times of an endpoint, from a process each."""
        found = []
        for look in range(LOOKS):
            verdict = self._revisions.probe_commit(commit, self._trial, look)
            time = TrialTime.of_verdict(verdict)
            if verdict.kind == NOT_THERE:
                raise BadInputError(f"{commit.label}: {verdict.reason}; see --path")
            if time is None:
                raise CannotRunError(
                    f"the {end} endpoint {commit.label} has no time to compare: {_reason(verdict)}"
                )
            if not look:
                self._verdicts[commit.hash] = verdict
            found.append(time)
        return found

    def _older(self, base: str) -> str:
        return (
            f"the kernel was slower before the histories part: {base} is slow, and {self._good.label} made"
            " it faster; give a good ancestor of it"
        )

    def _state(self, identity: str) -> State:
        """BAD for a slow commit, SKIP for one without a predicted time."""
        time = self._time(identity)
        if time is None:
            return State.SKIP
        return State.BAD if time.seconds > self._threshold else State.GOOD

    def _time(self, identity: str) -> TrialTime | None:
        if identity not in self._verdicts:
            commit = self._repository.commit(identity)
            self._verdicts[identity] = self._revisions.probe_commit(commit, self._trial)
        return TrialTime.of_verdict(self._verdicts[identity])

    def _answer(self, narrowed: Narrowed, goods: list[str]) -> Answer:
        bad = narrowed.bad
        commit = self._repository.commit(bad)
        before = self._time(commit.parents[0]) if narrowed.found and commit.parents else None
        after = self._time(bad)
        assert after is not None
        lines = [self._step_line(one) for one in self._steps()]
        described = [self._plain(one) for one in narrowed.candidates]
        for one in described:
            lines += commit_lines(one, self._said(one["hash"]))
        if narrowed.found:
            self._notes += self._rest(commit, before, after)
            was = "no time" if before is None else seconds_text(before.seconds)
            ratio = "" if before is None else f", {after.seconds / before.seconds:.3g} times"
            answer = (
                f"first slow commit: {bad[:10]} {commit.subject!r}: predicted {was} ->"
                f" {seconds_text(after.seconds)} on {after.machine}{ratio}, bound by {_bounds(before, after)}"
            )
        else:
            names = ", ".join(one[:10] for one in narrowed.candidates)
            answer = (
                f"first slow commit: one of {len(narrowed.candidates)}, those before the last have no"
                f" predicted time: {names}"
            )
        found = {
            **self._ends(),
            "result": "found" if narrowed.found else "candidates",
            **self._described(narrowed),
            "good_time": asdict(self._good_time),
            "bad_time": asdict(self._bad_time),
            "threshold": self._threshold,
            "before": None if before is None else asdict(before),
            "after": asdict(after),
            "steps": self._steps(),
            "asked": len(self._verdicts),
            "notes": self._notes,
        }
        return Answer((*lines, *self._notes, answer), found, Exit.MISMATCH)

    def _rest(self, commit: Commit, before: TrialTime | None, after: TrialTime) -> list[str]:
        """Notes about what other commits add, with the endpoints that find them."""
        found = []
        parts = [(after, self._bad_time, f"--good {commit.hash[:10]}", "later")]
        if before is not None:
            parts.append((self._good_time, before, f"--bad {commit.parents[0][:10]}", "earlier"))
        for one, other, option, when in parts:
            if other.seconds > (1 + LEAST) * one.seconds:
                ratio = f"{other.seconds / one.seconds:.3g} times slower"
                found.append(f"note: {when} commits make it {ratio}: bisect again with {option}")
        return found

    def _steps(self) -> list[dict[str, Any]]:
        """The commits that were probed, in that order."""
        found = []
        for identity, verdict in self._verdicts.items():
            time = TrialTime.of_verdict(verdict)
            state = "skip" if time is None else "slow" if time.seconds > self._threshold else "fast"
            step = {"hash": identity, "subject": self._repository.commit(identity).subject, "state": state}
            found.append({**step, "predicted": time and asdict(time), "reason": _reason(verdict)})
        return found

    def _step_line(self, step: dict[str, Any]) -> str:
        return f"{step['hash'][:10]}  {step['state']}  {self._said(step['hash'])}  {step['subject']!r}"

    def _said(self, identity: str) -> str:
        verdict = self._verdicts.get(identity)
        if verdict is None:
            return "not asked"
        time = TrialTime.of_verdict(verdict)
        return _reason(verdict) if time is None else f"predicted {time}"


def _apart(faster: Sequence[TrialTime], slower: Sequence[TrialTime]) -> bool:
    """Whether each of the `slower` times is more than `LEAST` above each of the others."""
    most = max(time.seconds for time in faster)
    return min(time.seconds for time in slower) > (1 + LEAST) * most


def _times(found: Sequence[TrialTime]) -> str:
    """Each text once."""
    return " and ".join(dict.fromkeys(seconds_text(time.seconds) for time in found))


def _bounds(before: TrialTime | None, after: TrialTime) -> str:
    changed = before is not None and before.bound != after.bound
    return f"{before.bound} -> {after.bound}" if before is not None and changed else after.bound


def _reason(verdict: Verdict) -> str:
    """Why a commit was skipped; empty for one with a predicted time."""
    if TrialTime.of_verdict(verdict) is not None:
        return ""
    return verdict.reason if verdict.kind == NO_START else f"{verdict.kind}, {verdict.reason}"
