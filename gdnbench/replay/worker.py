"""The process that runs one kernel on record after record, told by JSON lines on a pipe.

`python -m gdnbench.replay.worker REQUESTS REPLIES KERNEL ON STORE RESULTS STAGES CHECK TRACE`: file
descriptors of the two pipes, the kernel's name, the device, the store, the file that outputs are written to,
1 if the kernel's stages are wanted beside them, 1 if the simulator is to check it, and as JSON the trace that
it is to write, or null. A request is a record number; the reply is what `isolate` makes an Execution or a
Failure of. Whatever the kernel prints goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gdnbench.ops import operation
from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.replay.process import Message, Tell, serve
from gdnbench.replay.run import InProcess, bad_input
from gdnbench.replay.tensor_ipc import put, stages_beside
from gdnbench.store.reader import Store

if TYPE_CHECKING:
    from gdnbench.trace.request import TraceRequest


def main(arguments: list[str]) -> None:
    requests, replies, kernel, on, path, results, stages, check, asked = arguments
    runner = InProcess(kernel, on, stages == "1", check == "1", _trace(json.loads(asked)))
    with Store.open(path) as store:
        serve(int(requests), int(replies), partial(_start, store, runner, kernel, on, Path(results)))


def _trace(asked: Message | None) -> TraceRequest | None:
    if asked is None:
        return None
    from gdnbench.trace.request import TraceRequest

    return TraceRequest.from_json(asked)


def _start(
    store: Store, runner: InProcess, kernel: str, on: str, results: Path, tell: Tell
) -> Callable[[Message], Message]:
    """Tells whether there is such a kernel, and returns what runs it on a record."""
    tell({"bad_input": bad_input(kernel, on)})

    def answer(request: Message) -> Message:
        record = store.records[request["record"]]
        return _answer(runner.run(record, operation(record.info.op)), results)

    return answer


def _answer(found: Execution | Failure, results: Path) -> Message:
    checked = None if found.checked is None else [finding.as_json() for finding in found.checked]
    if isinstance(found, Failure):
        return {
            "outcome": str(found.outcome),
            "reason": found.reason,
            "imported": found.imported,
            "checked": checked,
        }
    return {
        "tensors": put(results, found.outputs),
        "faults": found.faults,
        "notes": found.notes,
        "seconds": found.seconds,
        "stages": put(stages_beside(results), found.stages),
        "conventions": found.conventions,
        "checked": checked,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
