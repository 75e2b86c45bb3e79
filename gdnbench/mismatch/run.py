# SPDX-License-Identifier: Apache-2.0
"""Runs `gdnbench capture STORE --on-mismatch K -- CMD`: the command, and the judging process beside it."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from gdnbench.capture.launch import check_store, run_captured
from gdnbench.capture.options import OPTIONS_VARIABLE, STORE_VARIABLE, CaptureOptions
from gdnbench.errors import BadInputError, Exit
from gdnbench.printable import printable
from gdnbench.store.address import redacted_url
from gdnbench.workers.process import Message, WorkerGone, WorkerProcess, describe_exit
from gdnbench.workers.restarting import PROCESS_ENDED

MODULE = "gdnbench.mismatch.worker"
WAITING_BYTES = 4 << 30
_RAISED = ("raised and is", "raised and are")
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_REMOVE_SECONDS = 2.0


def run_judged(
    store: str | os.PathLike[str],
    command: Sequence[str],
    options: CaptureOptions,
    k: float,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Run `command`, and keep in `store` the calls whose outputs exceed `k` times the error of torch's
    kernel. `variables` are added to the environment of the command.

    The exit status is that of `run_captured`, but 3 if the judge failed, and 128 + N if signal N ended the
    judging: signals are for the command while it runs, and end the judging after it. Of each process at most
    `options.max_bytes` (default 4 GiB) wait to be judged; the oldest are dropped beyond that. BadInputError
    and StoreError as `run_captured`, and BadInputError for a URL, a negative `k`, other triggers, and a store
    beside which no folder can be made.
    """
    if "://" in str(store):
        raise BadInputError(
            f"--on-mismatch needs a folder, not {redacted_url(str(store))}; capture into one and upload that"
        )
    if not 0 <= k < float("inf"):
        raise BadInputError(f"--on-mismatch {k:g} must be a number from 0 on: so often torch's error")
    if options.triggered or options.digests:
        raise BadInputError("--on-mismatch judges all selected calls; omit other triggers and --digests")
    place = Path(store).absolute()
    made = not place.exists()
    check_store(place)
    waiting = options.max_bytes or WAITING_BYTES
    options = replace(options, max_bytes=waiting, when_over="drop-oldest")
    signals = _Signals()
    status = 0
    with signals.raised():
        try:
            folder = _waiting_folder(place)
            try:
                judge = _start_judge(folder, place, k)
                try:
                    status = run_captured(folder, command, options, judged=True, variables=variables)
                    reply = _finish(judge)
                finally:
                    signals.hold()
                    judge.kill()
            finally:
                signals.hold()
                _remove(folder)
        except _EndedBySignal as ended:
            reply, status = {"error": f"{ended.name} ended it"}, status or 128 + ended.number
        finally:
            signals.hold()
            if made:
                with contextlib.suppress(OSError):  # not empty
                    place.rmdir()
    if "error" in reply:
        print(
            f"gdnbench: problem: the judge failed: {printable(reply['error'])}; what it kept until then is in"
            f" {printable(store)}, calls it did not come to are lost",
            file=sys.stderr,
        )
        return status or Exit.CANNOT_RUN
    for line in mismatch_summary(reply["tally"], store):
        print(f"gdnbench: {printable(line)}", file=sys.stderr)
    return status


class _EndedBySignal(BaseException):
    """Signal `number` ends the judging. No `except Exception` stops it, as with KeyboardInterrupt."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.name = signal.Signals(number).name


class _Signals:
    """Turns the signals that would end this process into `_EndedBySignal`, so that it cleans up. Those that
    it ignores (nohup) stay ignored."""

    def __init__(self) -> None:
        self._held = False

    @contextmanager
    def raised(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._handle)
            for number in _ENDING
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def hold(self) -> None:
        """Ignore further signals: what follows only cleans up."""
        self._held = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._held:
            self._held = True
            raise _EndedBySignal(number)


def _waiting_folder(store: Path) -> Path:
    """A folder beside `store` for the calls that wait to be judged. BadInputError if none can be made."""
    try:
        return Path(tempfile.mkdtemp(prefix=f".{store.name}.unjudged-", dir=store.parent))
    except OSError as error:
        raise BadInputError(
            f"{store.parent} takes no folder for the calls that wait to be judged: {error.strerror}; capture"
            " into another path"
        ) from None


def _remove(folder: Path) -> None:
    """Delete `folder`, again while the thread that seals, or a process of the command, still writes to it."""
    until = time.monotonic() + _REMOVE_SECONDS
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > until:
            return


def _start_judge(candidates: Path, store: Path, k: float) -> WorkerProcess:
    environment = {
        name: value for name, value in os.environ.items() if name not in (STORE_VARIABLE, OPTIONS_VARIABLE)
    }
    return WorkerProcess(MODULE, [str(candidates), str(store), repr(k)], environment=environment)


def _finish(judge: WorkerProcess) -> Message:
    """The judge's reply, after it has judged all that waits, however long that takes."""
    try:
        judge.receive(math.inf)  # that it has started
        return judge.request({"finish": True}, math.inf)
    except WorkerGone:
        return {"error": f"{PROCESS_ENDED} {describe_exit(judge.exit_status())}"}


def mismatch_summary(tally: dict[str, object], store: object) -> list[str]:
    """The summary lines for stderr."""
    some = [
        f"{tally[count]} {one if tally[count] == 1 else many} in {store}"
        for count, one, many in (("kept", "differs and is", "differ and are"), ("raised", *_RAISED))
        if tally[count]
    ]
    if not tally["kept"]:
        some.insert(0, "none differs")
    lines = [f"{tally['judged']} calls were judged; {'; '.join(some)}"]
    if tally["not_judged"]:
        lines.append(f"{tally['not_judged']} calls were not judged, for want of time; give a larger --every")
    if tally["refused"]:
        lines.append(f"{tally['refused']} calls cannot be judged; the first: {tally['first_refused']}")
    return lines
