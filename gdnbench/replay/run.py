"""Where a kernel runs: in this process. See `isolate` for one of its own."""

from __future__ import annotations

import contextlib
import sys
import traceback
from dataclasses import dataclass
from typing import Protocol

import torch

from gdnbench.replay.execute import Execution, execute
from gdnbench.replay.kernels import LoadedKernel, load
from gdnbench.replay.outcome import Outcome, classify
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Operation


@dataclass(frozen=True, slots=True)
class Failure:
    """A kernel that left nothing to compare, and why, in one line."""

    outcome: Outcome
    reason: str


class Runner(Protocol):
    """Runs one kernel on records."""

    def run(self, record: StoredRecord, operation: Operation) -> Execution | Failure: ...

    def close(self) -> None: ...


class InProcess:
    """Runs the kernel here: fast, but a crash or hang of it is ours. What it prints goes to stderr."""

    def __init__(self, kernel: str, device: torch.device) -> None:
        self._name = kernel
        self._device = device
        self._loaded: dict[str, LoadedKernel] = {}

    def run(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                if operation.name not in self._loaded:
                    self._loaded[operation.name] = load(self._name, operation)
                return execute(record, operation, self._loaded[operation.name], self._device)
        except Exception as error:
            return Failure(classify(error), describe(error))

    def close(self) -> None:
        self._loaded.clear()


def describe(error: BaseException) -> str:
    """An exception in one line: type, message, and the line that raised it."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
