# SPDX-License-Identifier: Apache-2.0
"""The worker process that runs trials and probes.

`python -m gdnbench.bisect.worker REQUESTS REPLIES`, with the file descriptors of the two pipes. A request is
a `Trial`, or a probe with its arguments. The first message says that the kernel was imported, for a trial one
more follows each record, and the last is the verdict, or the error instead of one. What kernels print goes to
stderr. Other revisions of gdnbench send and answer the same requests.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial

from gdnbench.bisect import trial as trials
from gdnbench.bisect.verdict import Verdict
from gdnbench.bisect.workers import PROGRESS, reply_or_error
from gdnbench.printable import printable
from gdnbench.workers.process import Message, Send, serve_requests

PACKAGE = "gdnbench.bisect."


def main(arguments: list[str]) -> None:
    requests, replies = arguments
    serve_requests(int(requests), int(replies), lambda send: partial(reply_to, send))


def reply_to(send: Send, request: Message) -> Message:
    """The reply to a request; `send` sends the messages ahead of it."""
    compute = _run_trial if "trial" in request else _run_probe
    return reply_or_error(lambda: {"verdict": compute(send, request).to_json()})


def _run_trial(send: Send, request: Message) -> Verdict:
    def report(line: str) -> None:
        print(printable(line), file=sys.stderr)
        send({PROGRESS: line})

    trial = trials.Trial.from_json(request["trial"])
    _import_kernel(trial.kernel, trial.on, send)
    return trials.run_trial(trial, report)


def _run_probe(send: Send, request: Message) -> Verdict:
    module, _, function = str(request["probe"]).partition(":")
    if not module.startswith(PACKAGE):
        raise ValueError(f"{module} is no module of {PACKAGE}")
    arguments = request["arguments"]
    probe = getattr(importlib.import_module(module), function)
    _import_kernel(arguments["kernel"], arguments["on"], send)
    verdict: Verdict = probe(**arguments)
    return verdict


def _import_kernel(kernel: str, on: str, send: Send) -> None:
    trials.import_kernel(kernel, on)
    send({PROGRESS: "imported"})


if __name__ == "__main__":
    main(sys.argv[1:])
