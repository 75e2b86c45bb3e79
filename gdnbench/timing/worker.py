"""The process that times kernels on record after record, told by JSON lines on a pipe.

`python -m gdnbench.timing.worker REQUESTS REPLIES STORE ON MARK OPTIONS`: file descriptors of the two pipes,
the store, the device, the file that says which kernel this is at, and a `TimingOptions` as JSON. A request is
a record's number and names of kernels; the reply is a RecordTiming, or the kernel that failed and how.
Whatever kernels print goes to stderr.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gdnbench.errors import GdnbenchError
from gdnbench.ops import operation
from gdnbench.replay.failure import classify, describe
from gdnbench.store.reader import Store
from gdnbench.timing.isolated import NOBODY
from gdnbench.timing.measure import KernelFailed, Session
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
    """Serve requests until the pipe closes, which it does when the parent is gone."""
    requests, replies, path, on, mark, options = arguments
    os.dup2(2, 1)
    faulthandler.enable()
    with (
        Store.open(path) as store,
        os.fdopen(int(requests), "r") as source,
        os.fdopen(int(replies), "w") as sink,
    ):
        _reply(sink, {"ready": True})
        session = Session(on, from_plain(TimingOptions, json.loads(options), "options"), Mark(mark).at)
        for line in source:
            request = json.loads(line)
            _reply(sink, _answer(session, store, request["record"], request["kernels"]))


def _answer(session: Session, store: Store, number: int, kernels: Sequence[str]) -> dict[str, Any]:
    record = store.records[number]
    try:
        return {"timing": session.time(record, operation(record.info.op), kernels).to_json()}
    except KernelFailed as failed:
        error: BaseException = failed.error
        kernel: str | None = failed.kernel
    except Exception as other:
        error, kernel = other, None
    reason = str(error) if isinstance(error, GdnbenchError) else describe(error)
    return {"kernel": kernel, "outcome": str(classify(error)), "reason": reason}


def _reply(sink: Any, message: dict[str, Any]) -> None:
    sink.write(json.dumps(message) + "\n")
    sink.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
