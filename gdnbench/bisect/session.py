# SPDX-License-Identifier: Apache-2.0
"""A bisection on disk: its arguments, every verdict so far, and finally its result.

A state folder has `probes.jsonl`, the cached verdicts of all its bisections, and one folder for each
bisection. That folder has `arguments.json` and, at the end, `found.json`, or `failed.json` after an error.
Killing the process loses at most the probe that ran: the same command, or `gdnbench bisect --resume`,
continues. A bisection with --fresh continues from where it was interrupted, too.
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
from gdnbench.bisect.verdict import CONTENT, PREDICTED, Verdict
from gdnbench.bisect.verdict_cache import Question, VerdictCache, cache_size, key_of
from gdnbench.errors import BadInputError, GdnbenchError, StoreError, exit_code_of
from gdnbench.sim.errors import SimError

STATE = Path(".gdnbench") / "bisect"
"""The default state folder, below the current folder."""
VERSION = 2
"""Version of the format of `arguments.json`."""
LEDGER, ARGUMENTS, FOUND, FAILED = "probes.jsonl", "arguments.json", "found.json", "failed.json"
IGNORED = ".gitignore"
LOCK = "lock"

Report = Callable[[str], None]


class RunningError(BadInputError):
    """Another process runs this bisection."""


class NotKeptError(Exception):
    """A probe failed for a reason that may be gone next time, such as a full disk. Its `verdict` is used by
    this process and not stored."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class Session:
    """One bisection. An axis keeps worktrees, environments and stores in `folder`. `report` gets one line of
    progress at a time."""

    folder: Path
    verdicts: VerdictCache
    report: Report
    _passing: dict[str, Verdict] = field(default_factory=dict)

    @classmethod
    def begin(
        cls,
        state: Path,
        axis: str,
        arguments: Mapping[str, Any],
        report: Report,
        fresh: bool = False,
        shown: Mapping[str, Any] | None = None,
    ) -> Session:
        """Starts or continues the bisection of these `arguments`, plain JSON, in the current folder. `fresh`:
        every cached verdict is probed again, once. `shown`: arguments that only change how the answer is
        printed, so that they do not make it another bisection."""
        here = str(Path.cwd())
        name = f"{axis}-{key_of({'axis': axis, 'arguments': arguments, 'cwd': here})[:12]}"
        folder = state / name
        since = cache_size(state / LEDGER) if fresh else _since(folder)
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
        return cls(folder, VerdictCache(state / LEDGER, since), report)

    def find_or_probe(self, label: str, question: Question, probe: Callable[[], Verdict]) -> Verdict:
        """The cached verdict for `question`, or the verdict of `probe`, which is then stored. Reports it as
        that of `label`. StoreError if the probe read other records than the question names."""
        found = self.verdicts.find(question) or self._passing.get(key_of(question))
        if found is not None:
            self.report(f"{label}: {_line(found)} (known)")
            return found
        self.report(f"{label}: ...")
        try:
            found = probe()
        except NotKeptError as error:
            self._passing[key_of(question)] = error.verdict
            self.report(f"{label}: {_line(error.verdict)}")
            return error.verdict
        check_content(label, question, found)
        self.verdicts.add(question, found)
        self.report(f"{label}: {_line(found)}, {found.seconds:.1f} s")
        return found

    def finish(self, found: Mapping[str, Any]) -> None:
        """Stores the result, plain JSON, and so marks the bisection as finished."""
        _write(self.folder / FOUND, found)

    def fail(self, error: GdnbenchError | SimError) -> None:
        """Stores the error that ended the bisection and that continuing would meet again."""
        _write(self.folder / FAILED, {"error": str(error), "exit": int(exit_code_of(error))})


def check_content(label: str, question: Question, verdict: Verdict) -> None:
    """StoreError if a verdict says that it read other records than its question asks about."""
    if CONTENT in question and CONTENT in verdict.facts:
        cache_key.check_unchanged(label, question[CONTENT], verdict.facts[CONTENT])


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes the file atomically."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(dict(content), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)


@contextmanager
def lock_session(folder: Path) -> Iterator[None]:
    """Locks the bisection of `folder` against other processes, for an axis that writes there. RunningError if
    another process holds the lock."""
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunningError(
                "this bisection runs already, in another process; wait for it, or give another --state"
            ) from None
        yield


def load_unfinished(state: Path) -> tuple[str, dict[str, Any]]:
    """Axis and arguments of the interrupted bisection that was started last. BadInputError if there is none
    or it was started in another folder, StoreError if the state folder is damaged."""
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
    """How many bytes of the verdict cache an interrupted bisection with --fresh ignores; 0 for any other."""
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
    if verdict.kind == PREDICTED:
        return f"{PREDICTED} {verdict.reason}"
    reason = f", {verdict.reason}" if verdict.reason else ""
    return f"{verdict.state} ({verdict.kind}{reason})" if verdict.kind != "pass" else str(verdict.state)
