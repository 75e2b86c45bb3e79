"""Probes of an axis' own in a process of their own, as `prober` runs trials: a kernel may end it.

A probe is a function of this package that takes plain JSON by keyword and returns a `Verdict`.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import BadInputError, CannotRunError, GdnbenchError
from gdnbench.replay.process import START_SECONDS, Gone, Message, Worker, cause, serve
from gdnbench.report.outcome import Outcome

TIMEOUT = 600.0
"""Seconds of a probe until it counts as hung."""
PACKAGE = "gdnbench.bisect."


class Remote:
    """One process that runs probes, replaced after a crash, a hang or an error of the device."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._worker: Worker | None = None

    def ask(self, probe: str, **arguments: Any) -> Verdict:
        """The verdict of `probe`, "package.module:function". BadInputError and CannotRunError as it raises
        them, CannotRunError if no process can be started."""
        worker = self._started()
        try:
            reply = worker.ask({"probe": probe, "arguments": arguments}, self._timeout)
        except TimeoutError:
            self.close()
            reason = f"no answer within {self._timeout:g} s; the process was killed"
            return Verdict(State.BAD, str(Outcome.HANG), reason, seconds=self._timeout)
        except Gone:
            status = worker.wait()
            self.close()
            return Verdict(State.BAD, str(Outcome.CRASH), f"the process ended by {cause(status)}")
        if reply.get("bad_input") is not None:
            raise BadInputError(reply["bad_input"])
        if reply.get("cannot_run") is not None:
            raise CannotRunError(reply["cannot_run"])
        found = Verdict.from_json(reply["verdict"], "the answer of a probing process")
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


def answer(request: Message) -> Message:
    """In the process: runs one probe."""
    module, _, function = str(request["probe"]).partition(":")
    if not module.startswith(PACKAGE):
        raise ValueError(f"{module} is no module of {PACKAGE}")
    try:
        found: Verdict = getattr(importlib.import_module(module), function)(**request["arguments"])
    except CannotRunError as error:
        return {"cannot_run": str(error)}
    except GdnbenchError as error:
        return {"bad_input": str(error)}
    return {"verdict": found.to_json()}


def main(arguments: list[str]) -> None:
    requests, replies = arguments
    serve(int(requests), int(replies), lambda tell: answer)


if __name__ == "__main__":
    main(sys.argv[1:])
