"""The process that judges and times kernels on record after record, told by JSON lines on a pipe.

`python -m gdnbench.timing.worker REQUESTS REPLIES STORE ON MARK OPTIONS`: file descriptors of the two pipes,
the store, the device, the file that says which kernel this is at, and a `TimingOptions` as JSON. A request is
a record's number and names of kernels; the reply is a RecordTiming, or the kernel that failed and how. Or it
is a record's number and the one kernel to judge there; then a first reply says that the kernel has run,
unless the record was refused, and the next what became of it. Whatever kernels print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from gdnbench.errors import BadInputError, GdnbenchError
from gdnbench.ops import operation
from gdnbench.replay.failure import classify, describe
from gdnbench.replay.process import Message, Tell, serve
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench.timing.isolated import NOBODY
from gdnbench.timing.measure import KernelFailed, PreparedWrong, RoundWrong, Session
from gdnbench.timing.options import TimingOptions
from gdnbench.timing.plain import from_plain


class Mark:
    """Says, in a file that outlives this process, which kernel's code it is in."""

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
        serve(int(requests), int(replies), partial(_start, store, on, chosen, Mark(mark)))


def _start(
    store: Store, on: str, options: TimingOptions, mark: Mark, tell: Tell
) -> Callable[[Message], Message]:
    """Returns what judges and times as a request says."""
    session = Session(on, options, mark.at)

    def answer(request: Message) -> Message:
        if "judge" in request:
            return _judged(session, store, request["record"], request["judge"], partial(tell, {"ran": True}))
        return _answer(session, store, request["record"], request["kernels"])

    return answer


def _judged(session: Session, store: Store, number: int, kernel: str, ran: Callable[[], None]) -> Message:
    try:
        found = session.judge(store.records[number], kernel, ran)
    except BadInputError as error:
        return {"bad_input": str(error)}
    return {"bad_input": None, "outcome": str(found.outcome), "reason": found.reason}


def _answer(session: Session, store: Store, number: int, kernels: Sequence[str]) -> Message:
    record = store.records[number]
    try:
        return {"timing": session.time(record, operation(record.info.op), kernels).to_json()}
    except KernelFailed as failed:
        error: BaseException = failed.error
        kernel: str | None = failed.kernel
    except Exception as other:
        error, kernel = other, None
    reason = str(error) if isinstance(error, GdnbenchError) else describe(error)
    outcome = Outcome.MISMATCH if isinstance(error, PreparedWrong | RoundWrong) else classify(error)
    return {"kernel": kernel, "outcome": str(outcome), "reason": reason}


if __name__ == "__main__":
    main(sys.argv[1:])
