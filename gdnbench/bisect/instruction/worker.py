# SPDX-License-Identifier: Apache-2.0
"""The worker process that runs one version of a kernel on the simulator.

`python -m gdnbench.bisect.instruction.worker REQUESTS REPLIES`, with the file descriptors of the two pipes. A
request names a record, a kernel and what to observe; the reply has the observations, or the failure of a
kernel that did not run to its end. What kernels print goes to stderr.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from gdnbench.bisect.cache_key import open_unchanged
from gdnbench.bisect.instruction.watching import Survey, WriterSearch, tracing
from gdnbench.bisect.trial import import_kernel
from gdnbench.bisect.workers import reply_or_error
from gdnbench.ops import operation
from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.replay.run import InProcess
from gdnbench.replay.simulated import SIM
from gdnbench.sim import Settings, active
from gdnbench.trace.watching import Tracing
from gdnbench.workers.process import Message, serve_requests


def main(arguments: list[str]) -> None:
    requests, replies = arguments
    serve_requests(int(requests), int(replies), lambda send: VersionRunner().reply_to)


class VersionRunner:
    """Replies to requests about one kernel, which is compiled once."""

    def __init__(self) -> None:
        self._runner: InProcess | None = None

    def reply_to(self, request: Message) -> Message:
        return reply_or_error(lambda: self._observe(request))

    def _observe(self, request: Message) -> Message:
        if self._runner is None:
            import_kernel(request["kernel"], SIM)
            self._runner = InProcess(request["kernel"], SIM, request["stages"])
        watch = _watch(request)
        number = request["record"]
        with open_unchanged(request["store"], lambda _: [number], request["content"]) as (store, _, _):
            record = store.records[number]
            with _filled_memory(), active(Settings(schedule=request["schedule"], watch=watch)):
                found = self._runner.run_record(record, operation(record.info.op))
        if isinstance(found, Failure):
            return {"failure": {"outcome": str(found.outcome), "reason": found.reason}}
        return _observations(watch, found)


@contextlib.contextmanager
def _filled_memory() -> Iterator[None]:
    """Has torch fill memory that it allocates. Memory that no launch writes is then the same in both
    versions, and a write changes it visibly."""
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


def _observations(watch: Survey | WriterSearch | Tracing, found: Execution) -> Message:
    if isinstance(watch, Survey):
        stages = {name: tensor.data_ptr() for name, tensor in found.stages.items()}
        return {"launches": watch.launches, "stages": stages}
    if isinstance(watch, WriterSearch):
        return {"cta": watch.found}
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {"files": sorted(file for file in files if file and file.endswith(".py"))}


if __name__ == "__main__":
    main(sys.argv[1:])
