# SPDX-License-Identifier: Apache-2.0
"""The worker process that judges and times kernels on one record after another.

`python -m gdnbench.timing.worker REQUESTS REPLIES STORE ON MARK OPTIONS`. REQUESTS and REPLIES are file
descriptors of the pipes, STORE the store, ON the device, MARK the file that names the kernel which runs, and
OPTIONS a `TimingOptions` as JSON. There are two kinds of request. A record number and names of kernels ask
for times; the reply is a RecordTiming, or the kernel that failed and its failure. A record number and one
kernel to judge ask for its outcome; unless the record is refused, a first message says that the kernel has
run. What kernels print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from gdnbench.errors import BAD_INPUT_ERRORS, EXPECTED_ERRORS
from gdnbench.ops import operation
from gdnbench.replay.failure import classify, describe
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench.timing.isolated import NOBODY
from gdnbench.timing.json_values import from_plain
from gdnbench.timing.measure import KernelFailed, PreparedWrong, RoundWrong, Session
from gdnbench.timing.options import TimingOptions
from gdnbench.workers.process import Message, Send, serve_requests


class Mark:
    """Writes which kernel's code this process is in to a file, which outlives the process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT)

    @contextmanager
    def at(self, position: int) -> Iterator[None]:
        os.pwrite(self._file, bytes([position]), 0)
        yield
        os.pwrite(self._file, bytes([NOBODY]), 0)


def main(arguments: list[str]) -> None:
    requests, replies, path, on, mark, options = arguments
    chosen = from_plain(TimingOptions, json.loads(options), "options")
    with Store.open(path) as store:
        serve_requests(int(requests), int(replies), partial(_start, store, on, chosen, Mark(mark)))


def _start(
    store: Store, on: str, options: TimingOptions, mark: Mark, send: Send
) -> Callable[[Message], Message]:
    """Returns the function that replies to a request."""
    session = Session(on, options, mark.at)

    def reply_to(request: Message) -> Message:
        if "judge" in request:
            return _judge(session, store, request["record"], request["judge"], partial(send, {"ran": True}))
        return _time(session, store, request["record"], request["kernels"])

    return reply_to


def _judge(session: Session, store: Store, number: int, kernel: str, ran: Callable[[], None]) -> Message:
    try:
        found = session.judge(store.records[number], kernel, ran)
    except BAD_INPUT_ERRORS as error:
        return {"bad_input": str(error)}
    return {"bad_input": None, "outcome": str(found.outcome), "reason": found.reason}


def _time(session: Session, store: Store, number: int, kernels: Sequence[str]) -> Message:
    record = store.records[number]
    try:
        return {"timing": session.time(record, operation(record.info.op), kernels).to_json()}
    except KernelFailed as failed:
        error: BaseException = failed.error
        kernel: str | None = failed.kernel
    except Exception as other:
        error, kernel = other, None
    reason = str(error) if isinstance(error, EXPECTED_ERRORS) else describe(error)
    outcome = Outcome.MISMATCH if isinstance(error, PreparedWrong | RoundWrong) else classify(error)
    return {"kernel": kernel, "outcome": str(outcome), "reason": reason}


if __name__ == "__main__":
    main(sys.argv[1:])
