"""One version of a kernel, in a process of its own, which compiles it once and is asked again and again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.bisect.answering import checked
from gdnbench.bisect.prober import Place
from gdnbench.errors import CannotRunError
from gdnbench.replay.process import START_SECONDS, Gone, Worker, cause

MODULE = "gdnbench.bisect.instruction.worker"


def place(folder: Path | None) -> Place:
    """Where a version runs. With a `folder` it starts there, since what `python -m` starts in comes before
    PYTHONPATH; so modules and FILE.py are looked for in it first, and not in the folder that this one is
    in."""
    if folder is None:
        return Place()
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return Place(folder=str(folder), environment={"PYTHONPATH": os.pathsep.join([str(folder), *paths])})


class VersionFails(Exception):
    """The kernel did not run to its end: the outcome and why, in one line."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Asked:
    """What both versions are run on. `content`: the digest of the record, which must still be that one."""

    store: str
    record: int
    content: str
    stages: bool
    schedule: str = "late"


class Version:
    """The kernel called `kernel`; modules and FILE.py are looked for in `folder` first, if there is one."""

    def __init__(self, kernel: str, folder: Path | None = None, timeout: float = 600.0) -> None:
        self.kernel = kernel
        self._place = place(folder)
        self._timeout = timeout
        self._worker: Worker | None = None

    def survey(self, asked: Asked, folder: Path) -> dict[str, Any]:
        """What every launch changed is in `folder` then: see `watching.Survey`. VersionFails."""
        folder.mkdir(parents=True, exist_ok=True)
        return self._ask(asked, {"watch": "survey", "folder": str(folder)})

    def writer(self, asked: Asked, launch: int, tensor: str, place: tuple[int, ...]) -> int | None:
        """Which CTA writes an element."""
        request = {"watch": "writer", "launch": launch, "tensor": tensor, "place": list(place)}
        found: int | None = self._ask(asked, request)["cta"]
        return found

    def trace(self, asked: Asked, launch: int, cta: int, path: Path, limit: int) -> list[str]:
        """Writes a value trace; returns the source files of all modules that the process has imported."""
        request = {"watch": "trace", "launch": launch, "cta": cta, "path": str(path), "limit": limit}
        found: list[str] = self._ask(asked, request)["files"]
        return found

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _ask(self, asked: Asked, request: dict[str, Any]) -> dict[str, Any]:
        message = {
            **request,
            "kernel": self.kernel,
            "store": asked.store,
            "record": asked.record,
            "content": asked.content,
            "stages": asked.stages,
            "schedule": asked.schedule,
        }
        worker = self._started()
        try:
            reply = worker.ask(message, self._timeout)
        except TimeoutError:
            self.close()
            raise VersionFails("hang", f"no answer within {self._timeout:g} s") from None
        except Gone:
            status = worker.wait()
            self.close()
            raise VersionFails("crash", f"the process ended by {cause(status)}") from None
        checked(reply)
        if reply.get("failure") is not None:
            raise VersionFails(reply["failure"]["outcome"], reply["failure"]["reason"])
        return reply

    def _started(self) -> Worker:
        if self._worker is None:
            self._worker = self._place.worker(MODULE)
            try:
                self._worker.receive(START_SECONDS)
            except (TimeoutError, Gone):
                self.close()
                raise CannotRunError("a process to simulate in did not start; its stderr says why") from None
        return self._worker
