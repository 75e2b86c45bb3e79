"""Where a kernel runs: in this process. See `isolate` for one of its own."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Protocol

from gdnbench.errors import BadInputError
from gdnbench.replay.execute import Execution, execute
from gdnbench.replay.failure import Failure, classify, describe
from gdnbench.replay.kernels import LoadedKernel, is_user_kernel, load, load_function
from gdnbench.replay.simulated import simulated, traced
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Operation

if TYPE_CHECKING:
    from gdnbench.sim.report import Finding
    from gdnbench.trace.request import TraceRequest


class Runner(Protocol):
    """Runs one kernel on records."""

    def run(self, record: StoredRecord, operation: Operation) -> Execution | Failure: ...

    def close(self) -> None: ...


class InProcess:
    """Runs the kernel here: fast, but a crash or hang of it is ours. What it prints goes to stderr. With
    `check` the simulator checks it, with `trace` it writes what instructions compute. `kernel` is a name, or
    loaded already."""

    def __init__(
        self,
        kernel: str | LoadedKernel,
        on: str,
        stages: bool = False,
        check: bool = False,
        trace: TraceRequest | None = None,
    ) -> None:
        self._asked = kernel
        self._on = on
        self._stages = stages
        self._check = check
        self._trace = trace
        self._loaded: dict[str, LoadedKernel] = {}

    def run(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        imported = False
        checked: list[Finding] | None = [] if self._check else None
        try:
            with contextlib.redirect_stdout(sys.stderr):
                kernel = self._load(operation)
                imported = True
                with traced(self._trace, record):
                    return execute(record, operation, kernel, self._on, self._stages, checked)
        except Exception as error:
            found = None if checked is None else tuple(checked)
            return Failure(classify(error), describe(error), imported, found)

    def _load(self, operation: Operation) -> LoadedKernel:
        if isinstance(self._asked, LoadedKernel):
            return self._asked
        if operation.name not in self._loaded:
            with simulated(self._on):  # its file may compile kernels when it is imported
                self._loaded[operation.name] = load(self._asked, operation)
        return self._loaded[operation.name]

    def close(self) -> None:
        self._loaded.clear()


def bad_input(kernel: str, on: str) -> str | None:
    """Why there is no function of that name; any other failure to load it is the outcome of each record."""
    if is_user_kernel(kernel):
        try:
            with simulated(on):
                load_function(kernel)
        except BadInputError as error:
            return str(error)
        except Exception:
            return None
    return None
