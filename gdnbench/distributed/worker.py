"""In a worker process: one record after another of a job, its store and kernels kept open in between.

A worker is sent what only this package's own version may read, so `run` looks at who sent it first.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gdnbench.distributed.job import Job, Task, code
from gdnbench.distributed.wire import dumps, loads
from gdnbench.errors import BadInputError, CannotRunError, GdnbenchError, StoreError
from gdnbench.provenance import cpu_model, gpu_provenance
from gdnbench.replay.judged import Judged
from gdnbench.replay.kernels import is_user_kernel
from gdnbench.replay.replay import Replayer, replaying
from gdnbench.store.address import is_absolute
from gdnbench.store.reader import Store

_ONE_AT_A_TIME = threading.Lock()
"""Replay redirects stdout and changes folders: of the whole process."""


class _Session:
    """A job's store and replayer, open in this process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        with ExitStack() as stack:
            if job.threads is not None:
                torch.set_num_threads(job.threads)
            self.store = stack.enter_context(Store.open(job.store))
            self.replayer: Replayer = stack.enter_context(replaying(self.store, job.options))
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()


_session: _Session | None = None


def run(expected: str | None, job: bytes, task: bytes) -> bytes:
    """What `wire.loads` makes a Judged of, or the GdnbenchError that ends the job. `expected` is the
    coordinator's `code()`; None: it is this installation."""
    with _ONE_AT_A_TIME:
        try:
            if expected is not None and (here := code()) != expected:
                raise CannotRunError(
                    f"worker {_name()} has {here}, but this is {expected}: install the same there"
                )
            return dumps(_judge(loads(job), loads(task)))
        except GdnbenchError as error:
            return dumps(error)


def end(token: str) -> None:
    """Closes what is open for the job of that name, processes of its kernels among it, once its record is
    done. Does not wait: it is called in the thread that the worker's connections live in."""
    threading.Thread(target=_end, args=(token,), name="gdnbench end of job", daemon=True).start()


def about() -> dict[str, Any]:
    """Of the machine that this is, what a run keeps of it."""
    return {"host": socket.gethostname(), "cpu": cpu_model(), **gpu_provenance()}


def _end(token: str) -> None:
    with _ONE_AT_A_TIME:
        if _session is not None and _session.job.token == token:
            _close()


def _judge(job: Job, task: Task) -> Judged:
    with _folder(job):
        session = _opened(job)
        number = task.number
        if number >= len(session.store.records) or Task.of(session.store.records[number]) != task:
            raise StoreError(
                f"worker {_name()}: record {number} of {job.store} is another than here:"
                " let all workers see the same store"
            )
        judged = session.replayer.judge(session.store.records[number])
    left = judged.execution if job.keep else None
    return replace(judged, execution=None if left is None else replace(left, launches=()))


@contextmanager
def _folder(job: Job) -> Iterator[None]:
    """Where the coordinator is, for the store and for kernels that are looked for there. A worker that has no
    such folder needs none for a store at an absolute path and a listed kernel."""
    there = Path(job.folder)
    named = (job.options.kernel, job.options.against)
    if not there.is_dir() and (not is_absolute(job.store) or any(map(is_user_kernel, named))):
        raise BadInputError(
            f"worker {_name()} has no folder {job.folder}, from which the store and kernels are named:"
            " share it, or give the store by an absolute path and a listed kernel"
        )
    with chdir(there) if there.is_dir() else nullcontext():
        yield


def _opened(job: Job) -> _Session:
    global _session
    if _session is None or _session.job.token != job.token:
        _close()
        try:
            _session = _Session(job)
        except StoreError as error:
            raise StoreError(f"worker {_name()}: {error}") from error
        except CannotRunError as error:
            raise CannotRunError(f"worker {_name()}: {error}") from error
    return _session


def _close() -> None:
    global _session
    if _session is not None:
        ended, _session = _session, None
        ended.close()


def _name() -> str:
    return f"{socket.gethostname()} ({os.getpid()})"
