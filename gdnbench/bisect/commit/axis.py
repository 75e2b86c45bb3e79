# SPDX-License-Identifier: Apache-2.0
"""The axis `commit`: finds the commit between a good and a bad revision that made a kernel wrong or
slower."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gdnbench.bisect.commit.probe import Revisions
from gdnbench.bisect.commit.relevant import Relevant
from gdnbench.bisect.commit.repository import Commit, Repository
from gdnbench.bisect.commit.search import Narrowed, narrow_commits
from gdnbench.bisect.commit.slower import SlowerSearch
from gdnbench.bisect.commit.walk import Answer, CommitBisection, CommitWalk, commit_lines
from gdnbench.bisect.commit.worktree import open_worktree
from gdnbench.bisect.endpoints import Endpoint, EndpointReplays, check_endpoints, failure_family
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import BadInputError, Exit
from gdnbench.report.outcome import Outcome


def bisect_commits(arguments: CommitBisection, session: Session) -> Answer:
    """Runs the bisection. BadInputError for endpoints that cannot be bisected, CannotRunError for endpoints
    that cannot be replayed."""
    repository = Repository(arguments.repo)
    good, bad = repository.commit(arguments.good, "--good"), repository.commit(arguments.bad, "--bad")
    if good.hash == bad.hash:
        raise BadInputError(f"--good and --bad are the same commit, {good.label}")
    arguments = replace(
        arguments,
        path=_inside(arguments.path, "--path"),
        also=tuple(_inside(one, "--also") for one in arguments.also),
    )
    for path in arguments.also:
        if not any(repository.tree(end.hash, path) for end in (good, bad)):
            raise BadInputError(f"--also {path} is neither in {good.label} nor in {bad.label}")
    trial = replace(arguments.trial, kernel=_kernel(arguments, repository, bad))
    relevant = Relevant(repository, trial.kernel, arguments.path, arguments.also)
    trees = [relevant.tree_hashes(end.hash) for end in (good, bad)]
    if trees[0] is not None and arguments.build is None and trees[0] == trees[1]:
        raise BadInputError(
            f"{good.label} and {bad.label} have the same files of the kernel and of what it imports; name"
            " what else it reads with --also"
        )
    if trial.predict is not None:
        _check_one_model(relevant, good, bad)
    if relevant.computed and not arguments.also and arguments.build is None:
        session.report(_computed_line(list(relevant.computed)))
    with open_worktree(repository, session.folder, arguments.submodules, arguments.build) as files:
        revisions = Revisions(
            session,
            repository,
            relevant,
            files,
            python=arguments.python,
            path=arguments.path,
            build=arguments.build,
            submodules=arguments.submodules,
            timeout=arguments.timeout,
        )
        walk: type[CommitWalk] = _WrongSearch if trial.predict is None else SlowerSearch
        return walk(arguments, trial, session, repository, revisions, good, bad).find_answer()


def _check_one_model(relevant: Relevant, *ends: Commit) -> None:
    """BadInputError for a repository whose revisions would each predict by a time model of their own."""
    for end in ends:
        if relevant.has_own_gdnbench(end.hash):
            raise BadInputError(
                f"--time compares revisions by one time model, and {end.label} has a gdnbench of its own;"
                " give --path of a folder without it that the kernel's package is in"
            )


def _inside(path: str, option: str) -> str:
    """`path` from the root of the repository, as git writes it. BadInputError if it leaves the repository."""
    found = posixpath.normpath(path)
    if found.startswith(("/", "../")) or found == "..":
        raise BadInputError(f"{option} {path} is no path in the repository; write it from its root")
    return "" if found == "." else found


def _kernel(arguments: CommitBisection, repository: Repository, bad: Commit) -> str:
    """The kernel's name in a form that means the same in every folder."""
    place, _, function = arguments.trial.kernel.rpartition(":")
    if place.endswith(".py"):
        inside = str(Path(arguments.path) / place)
        if not Path(place).is_absolute() and repository.tree(bad.hash, inside) is not None:
            return arguments.trial.kernel
        if not Path(place).is_file():
            raise BadInputError(f"kernel file {place} is neither in {bad.label} nor here")
        return f"{Path(place).resolve()}:{function}"
    if not place and not Relevant(repository, arguments.trial.kernel, arguments.path).has_own_gdnbench(
        bad.hash
    ):
        raise BadInputError(
            f"kernel {arguments.trial.kernel!r} is of this installation, and no revision of --repo has"
            " another; write package.module:function"
        )
    return arguments.trial.kernel


class _WrongSearch(CommitWalk):
    """Finds the commit that made the kernel wrong."""

    def _check_ends(self) -> Answer | None:
        found = check_endpoints(
            self._trial, self._asking(self._good), self._asking(self._bad), self._session.report
        )
        if found.ended:
            return self._ended(found.ended, found.result, found.exit_code)
        self._trial = found.trial
        self._notes += found.notes
        self._kind = failure_family(found.bad.kind)
        self._other: dict[str, list[str]] = {}  # commits by a kind that is not the bad endpoint's
        self._verdicts.update({self._bad.hash: found.bad, self._good.hash: found.good})
        return None

    def _asking(self, commit: Commit) -> EndpointReplays:
        def look(trial: Trial) -> Endpoint:
            return self._revisions.replay_endpoint(commit, trial)

        def ask(trial: Trial) -> Verdict:
            return self._revisions.probe_commit(commit, trial)

        return EndpointReplays(commit.label, look, ask)

    def _older(self, base: str) -> str:
        return (
            f"the fault is older than where the histories part: {base} is bad, so"
            f" {self._good.label} mended it; give a good ancestor of it"
        )

    def _state(self, identity: str) -> State:
        """GOOD, BAD for the bad endpoint's failure, else SKIP."""
        commit = self._repository.commit(identity)
        verdict = self._revisions.probe_commit(commit, self._trial)
        self._verdicts[identity] = verdict
        if (
            verdict.state is State.BAD
            and self._arguments.same_kind
            and self._trial.symptom is None
            and failure_family(verdict.kind) != self._kind
        ):
            self._other.setdefault(failure_family(verdict.kind), []).append(identity)
            return State.SKIP
        return verdict.state

    def _others(self, goods: list[str]) -> list[dict[str, Any]]:
        """The first commit of each failure of another kind that was seen."""
        found = []
        kind_before, met = self._kind, {kind: list(names) for kind, names in self._other.items()}
        for kind, names in met.items():
            self._kind = kind
            narrowed = narrow_commits(self._repository, names[0], goods, self._state)
            found.append({"kind": kind, "met": len(names), **self._described(narrowed)})
        self._kind = kind_before
        return found

    def _stage(self, identity: str) -> dict[str, Any] | None:
        """The first tensor, stages before outputs, that passes at the commit's parent and fails in the
        commit."""
        commit = self._repository.commit(identity)
        if not commit.parents or self._kind != Outcome.MISMATCH:
            return None
        trial = replace(self._trial, stages=True)
        after = self._revisions.probe_commit(commit, trial)
        before = self._revisions.probe_commit(self._repository.commit(commit.parents[0]), trial)
        was, now = before.facts.get("tensors", {}), after.facts.get("tensors", {})
        name = next((name for name, passed in now.items() if not passed and was.get(name)), None)
        return None if name is None else {"tensor": name, "reason": after.reason}

    def _answer(self, narrowed: Narrowed, goods: list[str]) -> Answer:
        others = self._others(goods)
        stage = self._stage(narrowed.bad) if narrowed.found else None
        lines = list(self._notes)
        for other in others:
            lines.append(_other_line(other))
        described = [self._plain(one) for one in narrowed.candidates]
        for one in described:
            lines += commit_lines(one, _said(one))
        kind = self._verdicts[narrowed.bad].kind
        if narrowed.found:
            where = f", stage {stage['tensor']}" if stage else ""
            reason = self._verdicts[narrowed.bad].reason
            lines.append(
                f"first bad commit: {narrowed.bad[:10]} {described[0]['subject']!r}: {kind}{where}; {reason}"
            )
        else:
            names = ", ".join(one[:10] for one in narrowed.candidates)
            lines.append(
                f"first bad commit: one of {len(narrowed.candidates)}, those before the last cannot be told:"
                f" {names} ({kind})"
            )
        found = {
            "result": "found" if narrowed.found else "candidates",
            "kind": kind,
            **self._described(narrowed),
            "stage": stage,
            "other_kinds": others,
            "asked": len(self._verdicts),
            "notes": self._notes,
        }
        return Answer(tuple(lines), {**self._ends(), **found}, Exit.MISMATCH)


def _computed_line(places: list[str]) -> str:
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return (
        f"imports by a computed name are not followed: {places[0]}{more}; name the files of this repository"
        " that they import with --also"
    )


def _said(one: Mapping[str, Any]) -> str:
    verdict = one["verdict"]
    return f"{verdict['state']}: {verdict['kind']}, {verdict['reason']}" if verdict else "not asked"


def _other_line(other: Mapping[str, Any]) -> str:
    if other["commit"]:
        first = other["commit"]
        return f"another failure: {other['kind']} from {first['hash'][:10]} {first['subject']!r} on"
    names = ", ".join(one["hash"][:10] for one in other["candidates"])
    return f"another failure: {other['kind']} from one of {names} on"
