# SPDX-License-Identifier: Apache-2.0
"""The judging process of `gdnbench capture --on-mismatch`.

`python -m gdnbench.mismatch.worker REQUESTS REPLIES CANDIDATES STORE K`: a thread judges the calls that wait
in CANDIDATES. The one request says that the program has ended. The reply, once nothing waits any more, holds
the counts, or the error that ended the judging.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path

from gdnbench.workers.process import Message, serve_requests

IDLE_SECONDS = 0.2
IDLE_SHARE = 9
"""After a poll without new calls, wait this many times the poll's duration: listing thousands of calls takes
a while."""


def main(arguments: list[str]) -> None:
    requests, replies, candidates, store, k = arguments
    os.nice(19)  # the thread that judges inherits it
    judging = Judging(Path(candidates), Path(store), float(k))
    serve_requests(int(requests), int(replies), lambda _: judging.finish)


class Judging:
    """A thread that judges calls until `finish`."""

    def __init__(self, candidates: Path, store: Path, k: float) -> None:
        self._program_ended = threading.Event()
        self._reply: Future[Message] = Future()
        arguments = candidates, store, k
        threading.Thread(target=self._run, args=arguments, name="judge", daemon=True).start()

    def finish(self, _: Message) -> Message:
        """The reply to the request, once the calls that still wait are judged."""
        self._program_ended.set()
        return self._reply.result()

    def _run(self, candidates: Path, store: Path, k: float) -> None:
        try:
            self._reply.set_result(self._judge(candidates, store, k))
        except BaseException as error:  # `finish` raises it
            self._reply.set_exception(error)

    def _judge(self, candidates: Path, store: Path, k: float) -> Message:
        import torch

        from gdnbench.errors import EXPECTED_ERRORS
        from gdnbench.mismatch.candidates import Candidates

        torch.set_num_threads(1)
        waiting = Candidates(candidates, store, k)
        try:
            try:
                pause = 0.0
                while True:
                    ended = self._program_ended.wait(pause)
                    began = time.monotonic()
                    judged = waiting.poll()
                    if ended and not judged:
                        break
                    pause = 0.0 if judged else max(IDLE_SECONDS, IDLE_SHARE * (time.monotonic() - began))
            finally:
                tally = waiting.close()
        except EXPECTED_ERRORS as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": f"{store} cannot be written: {error.strerror or error}"}
        except Exception as error:  # one line instead of a traceback; the command ends with 3
            return {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        return {"tally": asdict(tally)}


if __name__ == "__main__":
    main(sys.argv[1:])
