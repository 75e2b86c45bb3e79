# SPDX-License-Identifier: Apache-2.0
"""Calls one function in a worker process: arguments and result are pickled, tensors among them.

`python -P -m gdnbench.workers.pickled_call REQUESTS REPLIES`. REQUESTS and REPLIES are file descriptors of
the pipes. A request names a file with the pickle of (function, arguments) and one for the pickle of the
result. Modules that the function imports, and what they remember, are then those of this call alone.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gdnbench.errors import EXPECTED_ERRORS, CannotRunError
from gdnbench.workers.process import (
    START_SECONDS,
    Message,
    Send,
    WorkerGone,
    WorkerProcess,
    describe_exit,
    serve_requests,
)
from gdnbench.workers.tensor_pickle import dumps, loads

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


def call_in_process(
    function: Callable[..., Any], *arguments: Any, what: str, progress: Progress | None = None
) -> Any:
    """`function(*arguments, progress)` in a process of its own, and what it returns. `function` is one of a
    module's; the pickles pass the arguments. Raises what the function raises of `EXPECTED_ERRORS`, and
    CannotRunError, which calls the process `what`, if it does not start or ends."""
    with tempfile.TemporaryDirectory(prefix="gdnbench-call-") as folder:
        call, result = Path(folder) / "call", Path(folder) / "result"
        call.write_bytes(dumps((function, arguments)))
        worker = WorkerProcess("gdnbench.workers.pickled_call", [])
        try:
            try:
                worker.receive(START_SECONDS)
                reply = worker.request({"call": str(call), "result": str(result)}, math.inf)
                while "done" in reply:
                    if progress is not None:
                        progress(reply["done"], reply["total"])
                    reply = worker.receive(math.inf)
            except (TimeoutError, WorkerGone):
                status = describe_exit(worker.exit_status())
                raise CannotRunError(f"{what} ended by {status}; its stderr says why") from None
        finally:
            worker.kill()
        raised, value = loads(result.read_bytes())
    if raised:
        raise value
    return value


def main(arguments: list[str]) -> None:
    requests, replies = map(int, arguments)
    serve_requests(requests, replies, _start)


def _start(send: Send) -> Callable[[Message], Message]:
    return partial(_call, send)


def _call(send: Send, request: Message) -> Message:
    function, arguments = loads(Path(request["call"]).read_bytes())

    def progress(done: int, total: int) -> None:
        send({"done": done, "total": total})

    try:
        answer = (False, function(*arguments, progress))
    except EXPECTED_ERRORS as error:
        answer = (True, error)
    Path(request["result"]).write_bytes(dumps(answer))
    return {"result": request["result"]}


if __name__ == "__main__":
    main(sys.argv[1:])
