"""The axis `commit`: finds the commit between a good and a bad revision that made a kernel wrong."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gdnbench.bisect.commit.probe import Revisions
from gdnbench.bisect.commit.relevant import Relevant
from gdnbench.bisect.commit.repository import UNSHALLOW, Commit, Repository
from gdnbench.bisect.commit.search import Narrowed, narrow_commits
from gdnbench.bisect.commit.worktree import open_worktree
from gdnbench.bisect.endpoints import Endpoint, EndpointReplays, check_endpoints, failure_family
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import BadInputError, Exit
from gdnbench.report.outcome import Outcome


@dataclass(frozen=True, slots=True)
class CommitBisection:
    """The arguments of a bisection. `path` is the folder of the repository that imports start from. `also`
    names files and folders that the kernel reads without importing them. With `same_kind` only a failure of
    the same kind as at the bad endpoint counts as bad. With a symptom, which says what is bad, it is not
    used."""

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


@dataclass(slots=True)
class _Seen:
    """Verdicts by commit, of this bisection."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    other: dict[str, list[str]] = field(default_factory=dict)  # commits by a kind not the bad endpoint's


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
        return _Bisection(arguments, trial, session, repository, revisions, good, bad).find_answer()


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


class _Bisection:
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
        self._seen = _Seen()
        self._kind = ""

    def find_answer(self) -> Answer:
        found = check_endpoints(
            self._trial, self._asking(self._good), self._asking(self._bad), self._session.report
        )
        if found.ended:
            return self._ended(found.ended, found.result, found.exit_code)
        self._trial, notes = found.trial, found.notes
        self._kind = failure_family(found.bad.kind)
        self._seen.verdicts.update({self._bad.hash: found.bad, self._good.hash: found.good})
        goods = [self._good.hash]
        for base in self._bases(notes):
            match self._state(base):
                case State.GOOD:
                    goods.append(base)
                case State.BAD:
                    commit = self._repository.commit(base)
                    said = (
                        f"the fault is older than where the histories part: {commit.label} is bad, so"
                        f" {self._good.label} mended it; give a good ancestor of it"
                    )
                    return self._ended(said, "older", Exit.MISMATCH, {"merge_base": base})
                case State.SKIP:
                    notes.append(f"the merge base {base[:10]} cannot be told; taken to be good")
        narrowed = narrow_commits(self._repository, self._bad.hash, goods, self._state)
        return self._answer(narrowed, goods, notes)

    def _asking(self, commit: Commit) -> EndpointReplays:
        def look(trial: Trial) -> Endpoint:
            return self._revisions.replay_endpoint(commit, trial)

        def ask(trial: Trial) -> Verdict:
            return self._revisions.probe_commit(commit, trial)

        return EndpointReplays(commit.label, look, ask)

    def _bases(self, notes: list[str]) -> list[str]:
        """The merge bases of the endpoints, if the good one is no ancestor of the bad one."""
        bases = self._repository.merge_bases(self._bad.hash, self._good.hash)
        if not bases:
            apart = f"{self._good.label} and {self._bad.label} have no commit in common"
            if self._repository.shallow():
                raise BadInputError(f"{apart}: {UNSHALLOW}")
            notes.append(f"{apart}: all that {self._bad.label} comes from is looked at")
        if self._bad.hash in bases:
            raise BadInputError(
                f"--bad {self._bad.label} is an ancestor of --good {self._good.label}: was --bad mended"
                " later? Then exchange them to find what mended it"
            )
        return [base for base in bases if base != self._good.hash]

    def _state(self, identity: str) -> State:
        """GOOD, BAD for the bad endpoint's failure, else SKIP."""
        commit = self._repository.commit(identity)
        verdict = self._revisions.probe_commit(commit, self._trial)
        self._seen.verdicts[identity] = verdict
        if (
            verdict.state is State.BAD
            and self._arguments.same_kind
            and self._trial.symptom is None
            and failure_family(verdict.kind) != self._kind
        ):
            self._seen.other.setdefault(failure_family(verdict.kind), []).append(identity)
            return State.SKIP
        return verdict.state

    def _others(self, goods: list[str]) -> list[dict[str, Any]]:
        """The first commit of each failure of another kind that was seen."""
        found = []
        kind_before, met = self._kind, {kind: list(names) for kind, names in self._seen.other.items()}
        for kind, names in met.items():
            self._kind = kind
            narrowed = narrow_commits(self._repository, names[0], goods, self._state)
            found.append({"kind": kind, "met": len(names), **self._described(narrowed)})
        self._kind = kind_before
        return found

    def _described(self, narrowed: Narrowed) -> dict[str, Any]:
        return {
            "commit": self._plain(narrowed.bad) if narrowed.found else None,
            "candidates": [self._plain(one) for one in narrowed.candidates],
        }

    def _plain(self, identity: str) -> dict[str, Any]:
        commit = self._repository.commit(identity)
        verdict = self._seen.verdicts.get(identity)
        return {
            "hash": commit.hash,
            "subject": commit.subject,
            "author": commit.author,
            "author_date": commit.author_date,
            "diff_stat": self._repository.stat(commit),
            "verdict": None if verdict is None else verdict.to_json(),
        }

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

    def _answer(self, narrowed: Narrowed, goods: list[str], notes: list[str]) -> Answer:
        others = self._others(goods)
        stage = self._stage(narrowed.bad) if narrowed.found else None
        lines = list(notes)
        for other in others:
            lines.append(_other_line(other))
        described = [self._plain(one) for one in narrowed.candidates]
        for one in described:
            lines += _commit_lines(one)
        kind = self._seen.verdicts[narrowed.bad].kind
        if narrowed.found:
            where = f", stage {stage['tensor']}" if stage else ""
            reason = self._seen.verdicts[narrowed.bad].reason
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
            "asked": len(self._seen.verdicts),
            "notes": notes,
        }
        return Answer(tuple(lines), {**self._ends(), **found}, Exit.MISMATCH)

    def _ended(
        self, said: str, result: str, exit_code: Exit, more: Mapping[str, Any] | None = None
    ) -> Answer:
        found = {**self._ends(), "result": result, "reason": said, **(more or {})}
        return Answer((said,), found, exit_code)

    def _ends(self) -> dict[str, Any]:
        return {"axis": "commit", "good": self._good.hash, "bad": self._bad.hash}


def _computed_line(places: list[str]) -> str:
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return (
        f"imports by a computed name are not followed: {places[0]}{more}; name the files of this repository"
        " that they import with --also"
    )


def _commit_lines(one: Mapping[str, Any]) -> list[str]:
    verdict = one["verdict"]
    said = f"{verdict['state']}: {verdict['kind']}, {verdict['reason']}" if verdict else "not asked"
    head = [f"commit {one['hash']}", f"  {one['author_date']}  {one['author']}", f"  {one['subject']}"]
    return [*head, *(f"  {line.strip()}" for line in one["diff_stat"]), f"  {said}"]


def _other_line(other: Mapping[str, Any]) -> str:
    if other["commit"]:
        first = other["commit"]
        return f"another failure: {other['kind']} from {first['hash'][:10]} {first['subject']!r} on"
    names = ", ".join(one["hash"][:10] for one in other["candidates"])
    return f"another failure: {other['kind']} from one of {names} on"
