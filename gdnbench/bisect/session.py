"""A bisection on disk: what was asked for, every verdict so far, and in the end what was found.

A state folder has `probes.jsonl`, the ledger of all its bisections, and a folder a bisection with
`arguments.json` and, once it is done, `found.json`. Ending the process at any time loses at most the probe
that ran: the same command again, or `gdnbench bisect --resume`, goes on.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.bisect.ledger import Ledger, Question, key_of
from gdnbench.bisect.verdict import Verdict
from gdnbench.errors import BadInputError, StoreError

STATE = Path(".gdnbench") / "bisect"
"""Where bisections are kept unless told: under the folder that the command runs in."""
LEDGER, ARGUMENTS, FOUND = "probes.jsonl", "arguments.json", "found.json"
IGNORED = ".gitignore"
LOCK = "lock"

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Session:
    """One bisection. `folder` is its own, for what an axis keeps: worktrees, environments, stores."""

    folder: Path
    ledger: Ledger
    told: Told
    fresh: bool = False

    @classmethod
    def begin(
        cls, state: Path, axis: str, arguments: Mapping[str, Any], told: Told, fresh: bool = False
    ) -> Session:
        """The bisection of these arguments, plain JSON, whether it began before or not. `fresh`: verdicts
        that are known are asked for again."""
        name = f"{axis}-{key_of({'axis': axis, 'arguments': arguments})[:12]}"
        folder = state / name
        try:
            ours = not state.exists()
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"axis": axis, "arguments": arguments}, indent=2, sort_keys=True)
            (folder / ARGUMENTS).write_text(text + "\n", encoding="utf-8")
            (folder / FOUND).unlink(missing_ok=True)
            # A bisection in somebody's repository is no change to it; the repository itself is not ignored.
            if ours and not (state / IGNORED).exists():
                (state / IGNORED).write_text("*\n", encoding="utf-8")
        except OSError as error:
            raise BadInputError(f"--state {state} cannot be written: {error.strerror}") from None
        return cls(folder, Ledger(state / LEDGER), told, fresh)

    def ask(self, label: str, question: Question, probe: Callable[[], Verdict]) -> Verdict:
        """The verdict on `label`, which is told: known from before, or that of `probe`."""
        found = None if self.fresh else self.ledger.find(question)
        if found is not None:
            self.told(f"{label}: {_line(found)} (known)")
            return found
        self.told(f"{label}: ...")
        found = probe()
        self.ledger.add(question, found)
        self.told(f"{label}: {_line(found)}, {found.seconds:.1f} s")
        return found

    def finish(self, found: Mapping[str, Any]) -> None:
        """Keeps what came of it, plain JSON."""
        text = json.dumps(dict(found), indent=2, sort_keys=True)
        (self.folder / FOUND).write_text(text + "\n", encoding="utf-8")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """While no other process has the bisection of `folder`, for an axis that writes there. BadInputError if
    one has it."""
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInputError(
                "this bisection runs already, in another process; wait for it, or give another --state"
            ) from None
        yield


def unfinished(state: Path) -> tuple[str, dict[str, Any]]:
    """Axis and arguments of the bisection that was begun last of those not done. BadInputError if there is
    none, StoreError for a state folder that is damaged."""
    begun = [file for file in state.glob(f"*/{ARGUMENTS}") if not (file.parent / FOUND).exists()]
    if not begun:
        raise BadInputError(
            f"{state} has no bisection to go on with; begin one with an axis, see gdnbench bisect --help"
        )
    last = max(begun, key=lambda file: file.stat().st_mtime_ns)
    try:
        found = json.loads(last.read_text(encoding="utf-8"))
        return str(found["axis"]), dict(found["arguments"])
    except (OSError, ValueError, KeyError, TypeError):
        raise StoreError(f"{last} holds no arguments of a bisection; remove its folder") from None


def _line(verdict: Verdict) -> str:
    reason = f", {verdict.reason}" if verdict.reason else ""
    return f"{verdict.state} ({verdict.kind}{reason})" if verdict.kind != "pass" else str(verdict.state)
