"""Probes of an axis' own in a process of their own, as `prober` runs trials: a kernel may end it.

A probe is a function of this package that takes plain JSON by keyword and returns a `Verdict`.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import Any

from gdnbench.bisect.answering import answered, checked
from gdnbench.bisect.prober import PROCESS_ENDED, TIMEOUT, TOLD, ended
from gdnbench.bisect.trial import imports
from gdnbench.bisect.verdict import Verdict
from gdnbench.errors import CannotRunError
from gdnbench.replay.process import START_SECONDS, Gone, Message, Tell, Worker, cause, serve
from gdnbench.report.outcome import Outcome

PACKAGE = "gdnbench.bisect."


class Remote:
    """One process that runs probes, replaced after a crash, a hang or an error of the device."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._worker: Worker | None = None

    def ask(self, probe: str, **arguments: Any) -> Verdict:
        """The verdict of `probe`, "package.module:function". BadInputError, StoreError and CannotRunError
        as it raises them, CannotRunError if no process can be started or the probe fails in what is not the
        kernel."""
        worker = self._started()
        imported = False
        try:
            reply = worker.ask({"probe": probe, "arguments": arguments}, self._timeout)
            while TOLD in reply:
                imported = True
                reply = worker.receive(self._timeout)
        except TimeoutError:
            self.close()
            reason = f"no answer within {self._timeout:g} s; the process was killed"
            return ended(imported, Outcome.HANG, reason, self._timeout)
        except Gone:
            status = worker.wait()
            self.close()
            return ended(imported, Outcome.CRASH, f"{PROCESS_ENDED} {cause(status)}")
        found = Verdict.from_json(checked(reply)["verdict"], "the answer of a probing process")
        if found.kind == Outcome.CRASH and arguments.get("on") == "cuda":
            self.close()
        return found

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _started(self) -> Worker:
        if self._worker is None:
            self._worker = Worker("gdnbench.bisect.remote", [])
            try:
                self._worker.receive(START_SECONDS)
            except (TimeoutError, Gone):
                self.close()
                raise CannotRunError("a process to probe in did not start; its stderr says why") from None
        return self._worker


def answer(tell: Tell, request: Message) -> Message:
    """In the process: imports the kernel that the probe is of, and runs it."""
    module, _, function = str(request["probe"]).partition(":")
    if not module.startswith(PACKAGE):
        raise ValueError(f"{module} is no module of {PACKAGE}")
    arguments = request["arguments"]

    def work() -> Message:
        probe = getattr(importlib.import_module(module), function)
        imports(arguments["kernel"], arguments["on"])
        tell({TOLD: "imported"})
        found: Verdict = probe(**arguments)
        return {"verdict": found.to_json()}

    return answered(work)


def main(arguments: list[str]) -> None:
    requests, replies = arguments
    serve(int(requests), int(replies), lambda tell: partial(answer, tell))


if __name__ == "__main__":
    main(sys.argv[1:])
