# SPDX-License-Identifier: Apache-2.0
"""Runs trials at revisions: checks a revision out, builds it, and replays in a process that imports its
packages.
"""

from __future__ import annotations

from contextlib import closing

from gdnbench.bisect import cache_key
from gdnbench.bisect import trial as trials
from gdnbench.bisect.commit.relevant import Relevant, digest
from gdnbench.bisect.commit.repository import Commit, Repository
from gdnbench.bisect.commit.revision_cli import RevisionReplay
from gdnbench.bisect.commit.worktree import BuildFailure, Worktree
from gdnbench.bisect.endpoints import Endpoint, replay_endpoint
from gdnbench.bisect.interpreter import interpreter
from gdnbench.bisect.session import NotKeptError, Session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.verdict_cache import Question
from gdnbench.bisect.workers import Place, TrialRunner, TrialWorker
from gdnbench.errors import BAD_INPUT_ERRORS, CANNOT_RUN_ERRORS, BadInputError, CannotRunError

BUILD_FAILURE = "build failure"
NOT_THERE = "not there"
"""The kind of a revision that has no such kernel, yet or any more."""
NO_START = "does not start"


class Revisions:
    """Runs a trial at one revision after another."""

    def __init__(
        self,
        session: Session,
        repository: Repository,
        relevant: Relevant,
        worktree: Worktree,
        *,
        python: str,
        path: str,
        build: str | None,
        submodules: bool,
        timeout: float,
    ) -> None:
        self._session, self._repository, self._relevant = session, repository, relevant
        self._worktree, self._python, self._path = worktree, python, path
        self._build, self._submodules, self._timeout = build, submodules, timeout
        self._asked: dict[Trial, Question] = {}

    def probe_commit(self, commit: Commit, trial: Trial, again: int = 0) -> Verdict:
        """The verdict at a commit; SKIP if it cannot be built or has no such kernel. Each number of `again`
        is a probe of its own."""
        question = self._question(commit, trial)
        if question is None:
            return self._missing(commit)
        if again:
            question = {**question, "again": again}
        return self._session.find_or_probe(commit.label, question, lambda: self._probe(commit, trial))

    def replay_endpoint(self, commit: Commit, trial: Trial) -> Endpoint:
        """The endpoint at a commit, see `endpoints.replay_endpoint`. BadInputError or CannotRunError if it
        cannot be replayed."""
        question = self._question(commit, trial)
        if question is None:
            raise BadInputError(f"{commit.label}: {self._missing(commit).reason}; see --path")
        try:
            return replay_endpoint(
                self._session, commit.label, question, trial, lambda: self._trial_runner(commit)
            )
        except BuildFailure as error:
            raise CannotRunError(f"{commit.label}: {error}") from None
        except (*BAD_INPUT_ERRORS, *CANNOT_RUN_ERRORS) as error:
            raise type(error)(f"{commit.label}: {error}") from None

    def _missing(self, commit: Commit) -> Verdict:
        verdict = Verdict(State.SKIP, NOT_THERE, "there is no such package or file in this revision")
        self._session.report(f"{commit.label}: skip ({verdict.reason})")
        return verdict

    def _question(self, commit: Commit, trial: Trial) -> Question | None:
        """The question about a commit; None if the kernel's package is not in the revision."""
        trees = self._relevant.tree_hashes(commit.hash)
        if trees is None:
            return None
        if self._build is not None:  # which reads whatever it likes
            trees = {"": self._repository.tree(commit.hash) or commit.hash}
        if trial not in self._asked:
            self._asked[trial] = trials.question_without_code(trial)
        there = interpreter(self._python)
        return {
            **self._asked[trial],
            "axis": "commit",
            "code": cache_key.digest_code(self._relevant.outside(commit.hash)),
            "trees": digest(trees),
            "path": self._path,
            "build": self._build,
            "submodules": self._submodules,
            "timeout": self._timeout,
            "python": [there.version, there.platform, dict(there.packages)],
        }

    def _trial_runner(self, commit: Commit) -> TrialRunner:
        """Checks the commit out and returns what runs trials there. BuildFailure; BadInputError as
        `Relevant.import_roots`."""
        roots = self._relevant.import_roots(commit.hash)
        self._worktree.check_out(commit.hash, roots)
        folder = self._worktree.folder(self._path)
        place = Place(self._python, folder, self._worktree.environment(roots))
        return (RevisionReplay if self._relevant.has_own_gdnbench(commit.hash) else TrialWorker)(
            place, self._timeout
        )

    def _probe(self, commit: Commit, trial: Trial) -> Verdict:
        try:
            with closing(self._trial_runner(commit)) as runner:
                return runner.run_trial(trial)
        except BuildFailure as error:
            return Verdict(State.SKIP, BUILD_FAILURE, str(error))
        except BAD_INPUT_ERRORS as error:
            return Verdict(State.SKIP, NOT_THERE, str(error))
        except CANNOT_RUN_ERRORS as error:  # for this machine at that time, for all that is known
            raise NotKeptError(Verdict(State.SKIP, NO_START, str(error))) from None
