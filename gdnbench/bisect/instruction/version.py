# SPDX-License-Identifier: Apache-2.0
"""One version of a kernel in a worker process, which compiles the kernel once and runs it many times."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.bisect.workers import Place, raise_error_in
from gdnbench.workers.restarting import RestartingWorker, WorkerFailure

MODULE = "gdnbench.bisect.instruction.worker"
"""A folder with another revision of gdnbench has this module too and answers the same requests."""


def place(folder: Path | None) -> Place:
    """Where a version runs. With a `folder` its process starts there and has the folder first in PYTHONPATH,
    because workers start with `python -P`, which does not import from the current folder. So modules are
    looked for in `folder` first, and FILE.py is a path in it, not in the current folder of this process."""
    if folder is None:
        return Place()
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return Place(folder=str(folder), environment={"PYTHONPATH": os.pathsep.join([str(folder), *paths])})


class VersionFails(Exception):
    """The kernel did not run to its end. `outcome` is the kind of failure, `reason` one line."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RecordToRun:
    """The record that both versions run on. `content` is the digest that the record must still have."""

    store: str
    record: int
    content: str
    stages: bool
    schedule: str = "late"


class Version:
    """The kernel called `kernel`; modules and FILE.py are looked for in `folder` first, if there is one."""

    def __init__(self, kernel: str, folder: Path | None = None, timeout: float = 600.0) -> None:
        self.kernel = kernel
        self._timeout = timeout
        own_place = place(folder)
        self._worker = RestartingWorker(lambda: own_place.start_worker(MODULE), "a process to simulate in")

    def survey(self, asked: RecordToRun, folder: Path) -> dict[str, Any]:
        """Runs all launches and writes what each changed to `folder`, see `watching.Survey`. VersionFails."""
        folder.mkdir(parents=True, exist_ok=True)
        return self._ask(asked, {"watch": "survey", "folder": str(folder)})

    def writer(self, asked: RecordToRun, launch: int, tensor: str, place: tuple[int, ...]) -> int | None:
        """The CTA that writes an element."""
        request = {"watch": "writer", "launch": launch, "tensor": tensor, "place": list(place)}
        found: int | None = self._ask(asked, request)["cta"]
        return found

    def trace(self, asked: RecordToRun, launch: int, cta: int, path: Path, limit: int) -> list[str]:
        """Writes a value trace; returns the source files of all modules that the process imported."""
        request = {"watch": "trace", "launch": launch, "cta": cta, "path": str(path), "limit": limit}
        found: list[str] = self._ask(asked, request)["files"]
        return found

    def close(self) -> None:
        self._worker.kill()

    def _ask(self, asked: RecordToRun, request: dict[str, Any]) -> dict[str, Any]:
        message = {
            **request,
            "kernel": self.kernel,
            "store": asked.store,
            "record": asked.record,
            "content": asked.content,
            "stages": asked.stages,
            "schedule": asked.schedule,
        }
        try:
            reply = self._worker.request(message, self._timeout)
        except WorkerFailure as failure:
            raise VersionFails(str(failure.outcome), failure.reason) from None
        raise_error_in(reply)
        if reply.get("failure") is not None:
            raise VersionFails(reply["failure"]["outcome"], reply["failure"]["reason"])
        return reply
