# SPDX-License-Identifier: Apache-2.0
"""The worker process that runs one kernel on one record after another.

`python -m gdnbench.replay.worker REQUESTS REPLIES KERNEL ON STORE RESULTS STAGES CHECK TRACE KEEP_GOING
PREDICT`. REQUESTS and REPLIES are file descriptors of the pipes, KERNEL is a name, ON the device, STORE the
store, and RESULTS the file that outputs are written to. STAGES is 1 to write the kernel's stages to a file
beside it, CHECK is 1 to run the simulator's checker, TRACE is a TraceRequest as JSON, or null, KEEP_GOING is
1 to go on after faults, PREDICT is the machine whose time is predicted, or empty. A request is a record
number; `isolate` makes an Execution or a Failure of the reply. What the kernel prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gdnbench.ops import operation
from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.replay.isolate import stage_file
from gdnbench.replay.run import InProcess, why_not_found
from gdnbench.store.reader import Store
from gdnbench.workers.process import Message, Send, serve_requests
from gdnbench.workers.tensor_file import write_tensors

if TYPE_CHECKING:
    from gdnbench.trace.request import TraceRequest


def main(arguments: list[str]) -> None:
    requests, replies, kernel, on, path, results, stages, check, trace, keep_going, predict = arguments
    requested_trace = _trace_request(json.loads(trace))
    runner = InProcess(
        kernel,
        on,
        stages == "1",
        check == "1",
        requested_trace,
        keep_going=keep_going == "1",
        predict=predict or None,
    )
    with Store.open(path) as store:
        serve_requests(int(requests), int(replies), partial(_start, store, runner, kernel, on, Path(results)))


def _trace_request(plain: Message | None) -> TraceRequest | None:
    if plain is None:
        return None
    from gdnbench.trace.request import TraceRequest

    return TraceRequest.from_json(plain)


def _start(
    store: Store, runner: InProcess, kernel: str, on: str, results: Path, send: Send
) -> Callable[[Message], Message]:
    """Sends whether there is such a kernel, and returns the function that runs it on a record."""
    send({"bad_input": why_not_found(kernel, on)})

    def run_requested_record(request: Message) -> Message:
        record = store.records[request["record"]]
        found = runner.run_record(record, operation(record.info.op))
        _flush_printed()
        return _reply(found, results)

    return run_requested_record


def _flush_printed() -> None:
    """Writes what the kernel printed by Python and by the C library, so that it is this record's."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the kernel may have closed it
            stream.flush()
    with contextlib.suppress(OSError, AttributeError):  # there may be no such library
        ctypes.CDLL(None).fflush(None)


def _reply(found: Execution | Failure, results: Path) -> Message:
    checked = None if found.checked is None else [finding.as_json() for finding in found.checked]
    if isinstance(found, Failure):
        return {
            "outcome": str(found.outcome),
            "reason": found.reason,
            "imported": found.imported,
            "checked": checked,
            "error": found.error and found.error.to_json(),
        }
    return {
        "tensors": write_tensors(results, found.outputs),
        "faults": found.faults,
        "notes": found.notes,
        "seconds": found.seconds,
        "stages": write_tensors(stage_file(results), found.stages),
        "conventions": found.conventions,
        "checked": checked,
        "predicted": found.predicted and found.predicted.to_json(),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
