# SPDX-License-Identifier: Apache-2.0
"""Pools of Dask workers: processes that are started on this machine, or the workers of a scheduler."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from gdnbench.errors import BadInputError, CannotRunError

if TYPE_CHECKING:
    from distributed import Client, Future

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

GPU = "GPU"
"""The resource by which a scheduler's workers declare that they have a GPU."""

THREADS = "OMP_NUM_THREADS"
SAFE_PATH = "PYTHONSAFEPATH"
"""Variable with the meaning of `python -P`: the current folder is not imported from."""

CONNECT_SECONDS = 10.0
PRELOAD = """
import multiprocessing, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
multiprocessing.set_start_method("fork", force=True)
"""
"""Code that a worker on this machine runs first. It ignores a terminal's Ctrl-C: the parent gets the signal
too and ends the worker. Start method "fork" gives locks of libraries no names. A killed worker would leave
named locks behind, and Python would warn of each."""

DROP_SAFE_PATH = f"import os\nos.environ.pop({SAFE_PATH!r}, None)\n"
"""Code that a worker runs too where this module set SAFE_PATH. The worker itself was started with it; what a
kernel starts has the environment that the user gave."""

PIN_CORES = "import os\nos.sched_setaffinity(0, {})\n"
"""Code that a worker runs too with `pin_cores`, to have cores of its own."""

COUNT_SECONDS = 1.0
"""How long a count of slots is used before they are counted again."""


@dataclass(slots=True)
class WorkerPool:
    """Workers that run functions. `local`: they are processes of this machine and installation. `threads`: of
    torch on each worker, None to leave them as they are. `prefers_gpu`: tasks go to workers that declare a
    GPU, if any does. `resources`: what a worker must have, as of the last count of slots."""

    client: Client
    local: bool
    threads: int | None
    prefers_gpu: bool = False
    resources: Mapping[str, float] = field(default_factory=dict)
    _counted: tuple[float, int] = (-COUNT_SECONDS, 0)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Has one of the workers call `function`."""
        return self.client.submit(
            function, *arguments, pure=False, retries=0, resources=dict(self.resources) or None
        )

    def count_slots(self) -> int:
        """How many calls can run at once; 0 while there is no worker."""
        if time.monotonic() - self._counted[0] >= COUNT_SECONDS:
            workers = self.client.scheduler_info()["workers"].values()
            # Workers register when they like: one with a GPU may come after the first count.
            if self.prefers_gpu and any(one["resources"].get(GPU) for one in workers):
                self.resources = {GPU: 1.0}
            able = [one for one in workers if all(one["resources"].get(name) for name in self.resources)]
            self._counted = time.monotonic(), sum(one["nthreads"] for one in able)
        return self._counted[1]

    def call_on_each(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> list[Result]:
        """What `function` returns in each worker that answers. It runs beside the worker's tasks and must be
        quick."""
        results: dict[str, Result] = self.client.run(function, *arguments, on_error="ignore")
        return list(results.values())

    @contextmanager
    def told_by_workers(self, topic: str, listener: Callable[[Any], None]) -> Iterator[None]:
        """Passes what workers log under `topic` to `listener`, from a thread of the client."""
        self.client.subscribe_topic(topic, lambda event: listener(event[1]))
        try:
            yield
        finally:
            self.client.unsubscribe_topic(topic)


def tell_client(topic: str, message: Any) -> None:
    """In a worker: logs `message` for those that `told_by_workers` listens for."""
    from distributed import get_worker

    get_worker().log_event(topic, message)


@contextmanager
def open_pool(
    workers: int | None, scheduler: str | None, on: str, *, pin_cores: bool = False
) -> Iterator[WorkerPool]:
    """The workers of the `scheduler` at that address, or `workers` processes on this machine: None or 0 for
    as many as it has cores, with `on` = "cuda" as many as it has GPUs.

    `pin_cores` gives each worker on this machine cores of its own, for kernels that run on the simulator,
    which takes as many processes as its worker has cores.

    BadInputError for both `workers` and `scheduler` or a negative number, CannotRunError without Dask or if
    no scheduler answers.
    """
    if workers is not None and scheduler is not None:
        raise BadInputError("--workers starts processes here and --scheduler has its own: give one of them")
    if workers is not None and workers < 0:
        raise BadInputError(f"--workers {workers} is no number of processes")
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise CannotRunError("--workers and --scheduler need Dask: pip install 'gdnbench[spread]'") from None
    if scheduler is not None:
        with _remote_pool(scheduler, on) as pool:
            yield pool
    else:
        with _local_pool(workers, on, pin_cores) as pool:
            yield pool


@contextmanager
def _local_pool(workers: int | None, on: str, pin_cores: bool) -> Iterator[WorkerPool]:
    from distributed import Client, Nanny, Scheduler, SpecCluster

    gpus = visible_gpus() if on == "cuda" else []
    if on == "cuda" and not gpus:
        raise CannotRunError("--on cuda: no GPU is visible here for workers")
    cores = sorted(os.sched_getaffinity(0))
    count = workers or len(gpus) or len(cores)
    threads = _torch_threads()
    preload = [PRELOAD] if os.environ.get(SAFE_PATH) else [PRELOAD, DROP_SAFE_PATH]
    with tempfile.TemporaryDirectory(prefix="gdnbench-spread-") as scratch, _safe_path():
        common = {THREADS: str(threads), "TMPDIR": scratch}
        specification = {
            number: {
                "cls": Nanny,
                "options": {
                    "nthreads": 1,
                    "memory_limit": None,
                    "local_directory": scratch,
                    "dashboard": False,
                    "env": common | ({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}),
                    "host": "127.0.0.1",
                    "silence_logs": logging.CRITICAL,
                    "preload": [
                        *preload,
                        *([PIN_CORES.format(_own_cores(cores, number, count))] if pin_cores else []),
                    ],
                },
            }
            for number in range(count)
        }
        # `dask_dispatch` retries a task whose worker died: it knows which tasks ran alone.
        options = {
            "host": "127.0.0.1",
            "port": 0,
            "dashboard": False,
            "dashboard_address": "127.0.0.1:0",
            "allowed_failures": 0,
        }
        scheduling = {"cls": Scheduler, "options": options}
        with (
            _silence_dask(),
            SpecCluster(workers=specification, scheduler=scheduling, silence_logs=False) as cluster,
            Client(cluster, set_as_default=False) as client,
            client.as_current(),
        ):
            yield WorkerPool(client, True, threads)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Starts Python processes without the current folder on their import path. Dask starts workers, also the
    replacement of one that died, by `multiprocessing`, which takes no options for the interpreter."""
    if os.environ.get(SAFE_PATH):
        yield
        return
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH, None)


def _torch_threads() -> int:
    """Threads of torch on a worker: OMP_NUM_THREADS if it is one number of at least 1, else 1."""
    given = os.environ.get(THREADS, "")
    return max(1, int(given)) if given.isascii() and given.isdigit() else 1


def _own_cores(cores: Sequence[int], number: int, count: int) -> set[int]:
    """The cores of worker `number` of `count`. Workers share cores only if there are fewer cores than
    workers."""
    return set(cores[number::count]) or {cores[number % len(cores)]}


@contextmanager
def _silence_dask() -> Iterator[None]:
    """Keeps Dask from logging to stderr: the caller reports what happens to workers."""
    handlers = {one: one.level for one in logging.getLogger("distributed").handlers}
    for handler in handlers:
        handler.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for handler, level in handlers.items():
            handler.setLevel(level)


@contextmanager
def _remote_pool(scheduler: str, on: str) -> Iterator[WorkerPool]:
    from distributed import Client

    class Connected(Client):  # type: ignore[misc]  # Dask has no types
        """A Client that is collected without a connection waits 20 s for it to end, then prints a
        traceback."""

        def __del__(self) -> None:
            if self.status == "running":
                super().__del__()

    try:
        client = Connected(scheduler, set_as_default=False, timeout=CONNECT_SECONDS)
    except ValueError as error:
        raise BadInputError(f"--scheduler {scheduler}: {error}") from None
    except (OSError, MemoryError):  # another server's answer reads as the announcement of a huge one
        raise CannotRunError(
            f"no Dask scheduler answers at {scheduler}; start one with `dask scheduler`"
        ) from None
    with client, client.as_current():
        yield WorkerPool(client, False, None, prefers_gpu=on == "cuda")


def visible_gpus() -> list[str]:
    """The names by which CUDA_VISIBLE_DEVICES may choose one of the GPUs visible here."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
