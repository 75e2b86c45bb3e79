"""Runs `gdnbench capture STORE --on-mismatch K -- CMD`: the command, and the judging process beside it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gdnbench.capture.launch import check_store, run_captured
from gdnbench.capture.options import OPTIONS_VARIABLE, STORE_VARIABLE, CaptureOptions
from gdnbench.errors import BadInputError, Exit
from gdnbench.printable import printable
from gdnbench.store.address import redacted_url

WAITING_BYTES = 4 << 30
_RAISED = ("raised and is", "raised and are")


def run_judged(
    store: str | os.PathLike[str], command: Sequence[str], options: CaptureOptions, k: float
) -> int:
    """Run `command`, and keep in `store` the calls whose outputs exceed `k` times the error of torch's
    kernel.

    The exit status is that of `run_captured`, but 3 if the judge failed. Of each process at most
    `options.max_bytes` (default 4 GiB) wait to be judged; the oldest are dropped beyond that. BadInputError
    and StoreError as `run_captured`, and BadInputError for a URL, a negative `k`, and other triggers.
    """
    if "://" in str(store):
        raise BadInputError(
            f"--on-mismatch needs a folder, not {redacted_url(str(store))}; capture into one and upload that"
        )
    if not 0 <= k < float("inf"):
        raise BadInputError(f"--on-mismatch {k:g} must be a number from 0 on: so often torch's error")
    if options.triggered:
        raise BadInputError("--on-mismatch judges all selected calls; leave --when and --on-nonfinite out")
    place = Path(store).absolute()
    made = not place.exists()
    check_store(place)
    folder = Path(tempfile.mkdtemp(prefix=f".{place.name}.unjudged-", dir=place.parent))
    waiting = options.max_bytes or WAITING_BYTES
    options = replace(options, max_bytes=waiting, when_over="drop-oldest")
    try:
        with _judge(folder, place, k) as judge:
            status = run_captured(folder, command, options)
            found, _ = judge.communicate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):  # not empty
                place.rmdir()
    if judge.returncode:
        print(
            f"gdnbench: problem: the judge {_ended(judge.returncode)}; what it kept until then is in"
            f" {printable(store)}, calls it did not come to are lost",
            file=sys.stderr,
        )
        return status or Exit.CANNOT_RUN
    for line in mismatch_summary(json.loads(found), store):
        print(f"gdnbench: {printable(line)}", file=sys.stderr)
    return status


def _ended(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


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


def _judge(candidates: Path, store: Path, k: float) -> subprocess.Popen[bytes]:
    environment = {
        name: value for name, value in os.environ.items() if name not in (STORE_VARIABLE, OPTIONS_VARIABLE)
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gdnbench.mismatch", str(candidates), str(store), repr(k)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
