# SPDX-License-Identifier: Apache-2.0
"""Runs in a Dask worker: replays one record after another of a job and keeps its store and kernels open.

Only the same version of gdnbench can read a job, so `run_task` first compares the version of the sender.
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

from gdnbench.distributed.job import Job, Task, code_version
from gdnbench.errors import (
    CANNOT_RUN_ERRORS,
    EXPECTED_ERRORS,
    BadInputError,
    CannotRunError,
    StoreError,
)
from gdnbench.phases import State, listening, sending
from gdnbench.provenance import cpu_model, gpu_provenance
from gdnbench.replay.kernels import is_user_kernel
from gdnbench.replay.record import JudgedRecord
from gdnbench.replay.replay import Replayer, replaying
from gdnbench.store.address import is_absolute
from gdnbench.store.reader import Store
from gdnbench.workers.dask_pool import tell_client
from gdnbench.workers.tensor_pickle import dumps, loads

PHASES = "gdnbench-phases"
"""The topic of Dask events that say what a worker does."""

_ONE_AT_A_TIME = threading.Lock()
"""Held during a replay, which redirects stdout and changes the folder of the whole process."""


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


def run_task(expected: str | None, job: bytes, task: bytes) -> bytes:
    """A Judged, or the GdnbenchError that ends the job, pickled for `tensor_pickle.loads`. `expected` is the
    sender's `code_version()`, None if the sender is this installation."""
    with _ONE_AT_A_TIME:
        try:
            if expected is not None and (here := code_version()) != expected:
                raise CannotRunError(
                    f"worker {_name()} has {here}, but this is {expected}: install the same there"
                )
            return dumps(_replay(loads(job), loads(task)))
        except EXPECTED_ERRORS as error:
            return dumps(error)


def end_job(token: str) -> None:
    """Closes the store and the kernels' processes of the job called `token`, once its record is done. Does
    not wait: Dask calls this function in the thread that serves the worker's connections."""
    threading.Thread(target=_close_job, args=(token,), name="gdnbench end of job", daemon=True).start()


def describe_machine() -> dict[str, Any]:
    """Host name, CPU and GPU, as a saved run keeps them."""
    return {"host": socket.gethostname(), "cpu": cpu_model(), **gpu_provenance()}


def _close_job(token: str) -> None:
    with _ONE_AT_A_TIME:
        if _session is not None and _session.job.token == token:
            _close()


def _replay(job: Job, task: Task) -> JudgedRecord:
    with _in_job_folder(job):
        session = _open_session(job)
        number = task.number
        if number >= len(session.store.records) or Task.of_record(session.store.records[number]) != task:
            raise StoreError(
                f"worker {_name()}: record {number} of {job.store} is another than here:"
                " let all workers see the same store"
            )
        with listening(sending(_log_phase)):
            judged = session.replayer.judge(session.store.records[number])
    left = judged.execution if job.keep else None
    return replace(judged, execution=None if left is None else replace(left, launches=()))


def _log_phase(state: State) -> None:
    """Sends `state` to the client, which subscribed to PHASES."""
    tell_client(PHASES, [state.subject, state.phase, state.detail])


@contextmanager
def _in_job_folder(job: Job) -> Iterator[None]:
    """Changes to the sender's folder, from which the store and kernels are named. A worker without that
    folder needs none if the path of the store is absolute and the kernels are listed ones."""
    there = Path(job.folder)
    named = (job.options.kernel, job.options.against)
    if not there.is_dir() and (not is_absolute(job.store) or any(map(is_user_kernel, named))):
        raise BadInputError(
            f"worker {_name()} has no folder {job.folder}, from which the store and kernels are named:"
            " share it, or give the store by an absolute path and a listed kernel"
        )
    with chdir(there) if there.is_dir() else nullcontext():
        yield


def _open_session(job: Job) -> _Session:
    global _session
    if _session is None or _session.job.token != job.token:
        _close()
        try:
            _session = _Session(job)
        except StoreError as error:
            raise StoreError(f"worker {_name()}: {error}") from error
        except CANNOT_RUN_ERRORS as error:
            raise CannotRunError(f"worker {_name()}: {error}") from error
    return _session


def _close() -> None:
    global _session
    if _session is not None:
        ended, _session = _session, None
        ended.close()


def _name() -> str:
    return f"{socket.gethostname()} ({os.getpid()})"
