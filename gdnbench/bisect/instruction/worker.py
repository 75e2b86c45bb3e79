"""The process that runs one version of the kernel on the simulator, told by JSON lines on a pipe.

`python -m gdnbench.bisect.instruction.worker REQUESTS REPLIES`: file descriptors of the two pipes. A request
is a record, a kernel and what is to be watched; the reply is what was seen, or why the kernel did not run to
its end. What kernels print goes to stderr.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gdnbench.bisect.answering import answered
from gdnbench.bisect.cache_key import held
from gdnbench.bisect.instruction.watching import Survey, WriterSearch, tracing
from gdnbench.bisect.trial import imports
from gdnbench.ops import operation
from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.replay.process import Message, serve
from gdnbench.replay.run import InProcess
from gdnbench.replay.simulated import SIM
from gdnbench.sim.simulate import Settings, active
from gdnbench.trace.watching import Tracing


def main(arguments: list[str]) -> None:
    requests, replies = arguments
    serve(int(requests), int(replies), lambda tell: Answering().answer)


class Answering:
    """Answers requests about one kernel, which is compiled once."""

    def __init__(self) -> None:
        self._runner: InProcess | None = None

    def answer(self, request: Message) -> Message:
        return answered(lambda: self._answer(request))

    def _answer(self, request: Message) -> Message:
        if self._runner is None:
            imports(request["kernel"], SIM)
            self._runner = InProcess(request["kernel"], SIM, request["stages"])
        watch = _watch(request)
        number = request["record"]
        with held(request["store"], lambda _: [number], request["content"]) as (store, _, _):
            record = store.records[number]
            with _told_memory(), active(Settings(schedule=request["schedule"], watch=watch)):
                found = self._runner.run(record, operation(record.info.op))
        if isinstance(found, Failure):
            return {"failure": {"outcome": str(found.outcome), "reason": found.reason}}
        return _seen(watch, found)


@contextlib.contextmanager
def _told_memory() -> Iterator[None]:
    """While memory that torch hands out is filled, so that what no launch writes is the same in both
    versions, and what one writes is seen to change."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _watch(request: Message) -> Survey | WriterSearch | Tracing:
    match request["watch"]:
        case "survey":
            return Survey(Path(request["folder"]))
        case "writer":
            return WriterSearch(request["launch"], request["tensor"], tuple(request["place"]))
        case _:
            return tracing(request["launch"], request["cta"], Path(request["path"]), request["limit"])


def _seen(watch: Survey | WriterSearch | Tracing, found: Execution) -> Message:
    seen: dict[str, Any] = {}
    if isinstance(watch, Survey):
        stages = {name: tensor.data_ptr() for name, tensor in found.stages.items()}
        seen = {"launches": watch.launches, "stages": stages}
    elif isinstance(watch, WriterSearch):
        seen = {"cta": watch.found}
    else:
        files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        seen = {"files": sorted(file for file in files if file and file.endswith(".py"))}
    return seen


if __name__ == "__main__":
    main(sys.argv[1:])
