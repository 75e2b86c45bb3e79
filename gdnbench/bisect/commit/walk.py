# SPDX-License-Identifier: Apache-2.0
"""What bisections of commits share: the endpoints are checked, merge bases and then commits between them are
probed, and the answer is described."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.bisect.commit.probe import Revisions
from gdnbench.bisect.commit.repository import UNSHALLOW, Commit, Repository
from gdnbench.bisect.commit.search import Narrowed, narrow_commits
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import BadInputError, Exit


@dataclass(frozen=True, slots=True)
class CommitBisection:
    """The arguments of a bisection. `path` is the folder of the repository that imports start from. `also`
    names files and folders that the kernel reads without importing them. With `same_kind` only a failure of
    the same kind as at the bad endpoint counts as bad. With a symptom, which says what is bad, or predicted
    times, it is not used."""

    trial: Trial
    repo: Path
    good: str
    bad: str
    python: str
    timeout: float
    path: str = ""
    also: tuple[str, ...] = ()
    build: str | None = None
    submodules: bool = False
    same_kind: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """`lines` for people, of which the last is the answer; `found` is the same as plain JSON."""

    lines: tuple[str, ...]
    found: Mapping[str, Any]
    exit_code: Exit


class CommitWalk(ABC):
    """A bisection between two commits; a subclass says when a commit is bad. `exchanged`: what may explain a
    bad endpoint that is older than the good one."""

    exchanged = "was --bad mended later? Then exchange them to find what mended it"

    def __init__(
        self,
        arguments: CommitBisection,
        trial: Trial,
        session: Session,
        repository: Repository,
        revisions: Revisions,
        good: Commit,
        bad: Commit,
    ) -> None:
        self._arguments, self._trial, self._session = arguments, trial, session
        self._repository, self._revisions = repository, revisions
        self._good, self._bad = good, bad
        self._verdicts: dict[str, Verdict] = {}  # by commit, of this bisection
        self._notes: list[str] = []

    def find_answer(self) -> Answer:
        """BadInputError for endpoints that cannot be bisected, CannotRunError for endpoints that cannot be
        probed."""
        ended = self._check_ends()
        if ended is not None:
            return ended
        goods = [self._good.hash]
        for base in self._bases():
            match self._state(base):
                case State.GOOD:
                    goods.append(base)
                case State.BAD:
                    said = self._older(self._repository.commit(base).label)
                    return self._ended(said, "older", Exit.MISMATCH, {"merge_base": base})
                case State.SKIP:
                    self._notes.append(f"the merge base {base[:10]} cannot be told; taken to be good")
        narrowed = narrow_commits(self._repository, self._bad.hash, goods, self._state)
        return self._answer(narrowed, goods)

    @abstractmethod
    def _check_ends(self) -> Answer | None:
        """Probes the endpoints, whose verdicts are kept; an answer if there is nothing to bisect."""

    @abstractmethod
    def _state(self, identity: str) -> State:
        """GOOD, BAD as the bad endpoint, else SKIP."""

    @abstractmethod
    def _older(self, base: str) -> str:
        """The message about a merge base that is bad."""

    @abstractmethod
    def _answer(self, narrowed: Narrowed, goods: list[str]) -> Answer: ...

    def _bases(self) -> list[str]:
        """The merge bases of the endpoints, if the good one is no ancestor of the bad one."""
        bases = self._repository.merge_bases(self._bad.hash, self._good.hash)
        if not bases:
            apart = f"{self._good.label} and {self._bad.label} have no commit in common"
            if self._repository.shallow():
                raise BadInputError(f"{apart}: {UNSHALLOW}")
            self._notes.append(f"{apart}: all that {self._bad.label} comes from is looked at")
        if self._bad.hash in bases:
            raise BadInputError(
                f"--bad {self._bad.label} is an ancestor of --good {self._good.label}: {self.exchanged}"
            )
        return [base for base in bases if base != self._good.hash]

    def _described(self, narrowed: Narrowed) -> dict[str, Any]:
        return {
            "commit": self._plain(narrowed.bad) if narrowed.found else None,
            "candidates": [self._plain(one) for one in narrowed.candidates],
        }

    def _plain(self, identity: str) -> dict[str, Any]:
        commit = self._repository.commit(identity)
        verdict = self._verdicts.get(identity)
        return {
            "hash": commit.hash,
            "subject": commit.subject,
            "author": commit.author,
            "author_date": commit.author_date,
            "diff_stat": self._repository.stat(commit),
            "verdict": None if verdict is None else verdict.to_json(),
        }

    def _ended(
        self, said: str, result: str, exit_code: Exit, more: Mapping[str, Any] | None = None
    ) -> Answer:
        found = {**self._ends(), "result": result, "reason": said, **(more or {})}
        return Answer((said,), found, exit_code)

    def _ends(self) -> dict[str, Any]:
        return {"axis": "commit", "good": self._good.hash, "bad": self._bad.hash}


def commit_lines(one: Mapping[str, Any], said: str) -> list[str]:
    """A commit, as `CommitWalk` describes it, for people; `said` is its last line."""
    head = [f"commit {one['hash']}", f"  {one['author_date']}  {one['author']}", f"  {one['subject']}"]
    return [*head, *(f"  {line.strip()}" for line in one["diff_stat"]), f"  {said}"]
