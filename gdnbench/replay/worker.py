"""The process that runs one kernel on record after record, told by JSON lines on a pipe.

`python -m gdnbench.replay.worker REQUESTS REPLIES KERNEL ON STORE RESULTS STAGES`: file descriptors of the
two pipes, the kernel's name, the device, the store, the file that outputs are written to, and 1 if the
kernel's stages are wanted beside them. A request is a record number; the reply is what `isolate` makes an
Execution or a Failure of. Whatever the kernel prints goes to stderr.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import Any

from gdnbench.ops import operation
from gdnbench.replay.exchange import put, stages_beside
from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.replay.process import end_with_parent
from gdnbench.replay.run import InProcess, bad_input
from gdnbench.store.reader import Store


def main(arguments: list[str]) -> None:
    """Serve requests until the pipe closes, which it does when the parent is gone."""
    requests, replies, kernel, on, path, results, stages = arguments
    os.dup2(2, 1)
    end_with_parent(int(requests))
    faulthandler.enable()
    runner = InProcess(kernel, on, stages == "1")
    with (
        Store.open(path) as store,
        os.fdopen(int(requests), "r") as source,
        os.fdopen(int(replies), "w") as sink,
    ):
        _reply(sink, {"ready": True})
        _reply(sink, {"bad_input": bad_input(kernel, on)})
        for line in source:
            record = store.records[json.loads(line)["record"]]
            _reply(sink, _answer(runner.run(record, operation(record.info.op)), Path(results)))


def _answer(found: Execution | Failure, results: Path) -> dict[str, Any]:
    if isinstance(found, Failure):
        return {"outcome": str(found.outcome), "reason": found.reason}
    return {
        "tensors": put(results, found.outputs),
        "faults": found.faults,
        "notes": found.notes,
        "seconds": found.seconds,
        "stages": put(stages_beside(results), found.stages),
        "conventions": found.conventions,
    }


def _reply(sink: Any, message: dict[str, Any]) -> None:
    sink.write(json.dumps(message) + "\n")
    sink.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
