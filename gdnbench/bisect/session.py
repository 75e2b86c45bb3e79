"""A bisection on disk: what was asked for, every verdict so far, and in the end what was found.

A state folder has `probes.jsonl`, the ledger of all its bisections, and a folder a bisection with
`arguments.json` and, once it is done, `found.json`, or `failed.json` where it ended by an error. Ending the
process at any time loses at most the probe that ran: the same command again, or `gdnbench bisect --resume`,
goes on. One that was to ask everything again does so from where it was interrupted.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdnbench.bisect import cache_key
from gdnbench.bisect.verdict import CONTENT, Verdict
from gdnbench.bisect.verdict_cache import Ledger, Question, key_of, size_of
from gdnbench.errors import BadInputError, GdnbenchError, StoreError

STATE = Path(".gdnbench") / "bisect"
"""Where bisections are kept unless told: under the folder that the command runs in."""
VERSION = 2
"""Of what `arguments.json` says."""
LEDGER, ARGUMENTS, FOUND, FAILED = "probes.jsonl", "arguments.json", "found.json", "failed.json"
IGNORED = ".gitignore"
LOCK = "lock"

Told = Callable[[str], None]


class RunningError(BadInputError):
    """Another process has this bisection."""


class NotKeptError(Exception):
    """A probe that came to nothing for a reason that may be gone the next time, such as a full disk: its
    `verdict` holds while this process does and no longer."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class Session:
    """One bisection. `folder` is its own, for what an axis keeps: worktrees, environments, stores."""

    folder: Path
    ledger: Ledger
    told: Told
    _passing: dict[str, Verdict] = field(default_factory=dict)

    @classmethod
    def begin(
        cls,
        state: Path,
        axis: str,
        arguments: Mapping[str, Any],
        told: Told,
        fresh: bool = False,
        shown: Mapping[str, Any] | None = None,
    ) -> Session:
        """The bisection of these arguments, plain JSON, in the current folder, whether it began before or
        not. `fresh`: verdicts that are known are asked for again, once. `shown`: arguments that say how the
        answer is printed, and make no other bisection of it."""
        here = str(Path.cwd())
        name = f"{axis}-{key_of({'axis': axis, 'arguments': arguments, 'cwd': here})[:12]}"
        folder = state / name
        since = size_of(state / LEDGER) if fresh else _since(folder)
        kept = {"version": VERSION, "axis": axis, "arguments": arguments, "shown": shown or {}}
        try:
            ours = not state.exists()
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / ARGUMENTS, {**kept, "cwd": here, "since": since})
            for ended in (FOUND, FAILED):
                (folder / ended).unlink(missing_ok=True)
            # A bisection in somebody's repository is no change to it; the repository itself is not ignored.
            if ours and not (state / IGNORED).exists():
                (state / IGNORED).write_text("*\n", encoding="utf-8")
        except OSError as error:
            raise BadInputError(f"--state {state} cannot be written: {error.strerror}") from None
        return cls(folder, Ledger(state / LEDGER, since), told)

    def ask(self, label: str, question: Question, probe: Callable[[], Verdict]) -> Verdict:
        """The verdict on `label`, which is told: known from before, or that of `probe`. StoreError if that
        read other records than are asked about."""
        found = self.ledger.find(question) or self._passing.get(key_of(question))
        if found is not None:
            self.told(f"{label}: {_line(found)} (known)")
            return found
        self.told(f"{label}: ...")
        try:
            found = probe()
        except NotKeptError as error:
            self._passing[key_of(question)] = error.verdict
            self.told(f"{label}: {_line(error.verdict)}")
            return error.verdict
        check_content(label, question, found)
        self.ledger.add(question, found)
        self.told(f"{label}: {_line(found)}, {found.seconds:.1f} s")
        return found

    def finish(self, found: Mapping[str, Any]) -> None:
        """Keeps what came of it, plain JSON: there is nothing left to go on with."""
        _write(self.folder / FOUND, found)

    def fail(self, error: GdnbenchError) -> None:
        """Keeps that it ended by an error, which going on would meet again."""
        _write(self.folder / FAILED, {"error": str(error), "exit": int(error.exit_code)})


def check_content(label: str, question: Question, verdict: Verdict) -> None:
    """StoreError if a verdict says that it read other records than its question asks about."""
    if CONTENT in question and CONTENT in verdict.facts:
        cache_key.check(label, question[CONTENT], verdict.facts[CONTENT])


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """All of it or nothing, whenever the process ends and whoever else writes it."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(dict(content), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """While no other process has the bisection of `folder`, for an axis that writes there. RunningError if
    one has it."""
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunningError(
                "this bisection runs already, in another process; wait for it, or give another --state"
            ) from None
        yield


def unfinished(state: Path) -> tuple[str, dict[str, Any]]:
    """Axis and arguments of the bisection that was begun last of those that were interrupted. BadInputError
    if there is none or it was begun in another folder, StoreError for a state folder that is damaged."""
    begun = sorted(state.glob(f"*/{ARGUMENTS}"), key=lambda file: file.stat().st_mtime_ns)
    interrupted = [file for file in begun if not _ended(file.parent)]
    if interrupted:
        return _arguments(interrupted[-1])
    failed = [file.with_name(FAILED) for file in begun if file.with_name(FAILED).exists()]
    if failed:
        raise BadInputError(
            f"{state} has no bisection that was interrupted, and the last of those that failed would again:"
            f" {_error(failed[-1])}; mend that and give its command again"
        )
    raise BadInputError(
        f"{state} has no bisection to go on with; begin one with an axis, see gdnbench bisect --help"
    )


def _arguments(file: Path) -> tuple[str, dict[str, Any]]:
    found = _read(file)
    if found.get("version") != VERSION:
        raise StoreError(f"{file} is of another version of gdnbench; give the command again")
    axis, arguments, shown = found.get("axis"), found.get("arguments"), found.get("shown")
    if not isinstance(axis, str) or not isinstance(arguments, dict) or not isinstance(shown, dict):
        raise StoreError(f"{file} holds no arguments of a bisection; remove its folder")
    if found.get("cwd") != str(Path.cwd()):  # what its paths are relative to
        raise BadInputError(f"the bisection to go on with was begun in {found.get('cwd')}; go on there")
    return axis, {**arguments, **shown}


def _since(folder: Path) -> int:
    """Bytes of the ledger that an interrupted bisection was not to look at; 0 of any other."""
    if _ended(folder) or not (folder / ARGUMENTS).exists():
        return 0
    try:
        found = _read(folder / ARGUMENTS).get("since")
    except StoreError:  # it is written anew
        return 0
    return found if isinstance(found, int) and found > 0 else 0


def _ended(folder: Path) -> bool:
    return any((folder / name).exists() for name in (FOUND, FAILED))


def _error(file: Path) -> str:
    return str(_read(file).get("error", "it does not say why"))


def _read(file: Path) -> dict[str, Any]:
    """StoreError for a file that is no JSON object."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StoreError(f"{file} is damaged: it holds no arguments of a bisection; remove its folder")
    return found


def _line(verdict: Verdict) -> str:
    reason = f", {verdict.reason}" if verdict.reason else ""
    return f"{verdict.state} ({verdict.kind}{reason})" if verdict.kind != "pass" else str(verdict.state)
