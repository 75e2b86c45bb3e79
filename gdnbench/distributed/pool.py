"""Worker processes, by Dask: some on this machine, started and ended here, or those of a scheduler."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.replay.simulated import SIM

if TYPE_CHECKING:
    from distributed import Client, Future

Found = TypeVar("Found")
Arguments = TypeVarTuple("Arguments")

GPU = "GPU"
"""The resource by which a scheduler's workers say that they have one."""

THREADS = "OMP_NUM_THREADS"
CONNECT_SECONDS = 10.0
FIRST = """
import multiprocessing, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
multiprocessing.set_start_method("fork", force=True)
"""
"""What a worker of ours runs first. A terminal's Ctrl-C is for us, who then end it. And locks that libraries
make have no names, as in a process that was not spawned: what kills it would leave them behind, and Python
says so."""

PINNED = "import os\nos.sched_setaffinity(0, {})\n"
"""The same where kernels are simulated: each takes as many processes as it has cores, so that each worker has
some of its own."""

MOMENT = 1.0
"""Seconds that a count of workers is good for."""


@dataclass(slots=True)
class Pool:
    """Workers that calls are sent to. `local`: processes of this machine and installation."""

    client: Client
    local: bool
    threads: int | None
    resources: Mapping[str, float] = field(default_factory=dict)
    _slots: tuple[float, int] = (-MOMENT, 0)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self.client.submit(
            function, *arguments, pure=False, retries=0, resources=dict(self.resources) or None
        )

    def slots(self) -> int:
        """How many calls can run at once; 0 while there is no worker."""
        if time.monotonic() - self._slots[0] >= MOMENT:
            workers = self.client.scheduler_info()["workers"].values()
            able = [one for one in workers if all(one["resources"].get(name) for name in self.resources)]
            self._slots = time.monotonic(), sum(one["nthreads"] for one in able)
        return self._slots[1]

    def everywhere(self, function: Callable[[*Arguments], Found], *arguments: *Arguments) -> list[Found]:
        """What a function returns in each worker that answers; it runs beside what they do, and is quick."""
        found: dict[str, Found] = self.client.run(function, *arguments, on_error="ignore")
        return list(found.values())


@contextmanager
def pool(workers: int | None, scheduler: str | None, on: str) -> Iterator[Pool]:
    """`workers` processes on this machine, None or 0 for as many as it has cores, or on=cuda GPUs; or the
    workers of the `scheduler`.

    BadInputError for both or fewer than none, CannotRunError without Dask, or if nobody answers.
    """
    if workers is not None and scheduler is not None:
        raise BadInputError("--workers starts processes here and --scheduler has its own: give one of them")
    if workers is not None and workers < 0:
        raise BadInputError(f"--workers {workers} is no number of processes")
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise CannotRunError("--workers and --scheduler need Dask: pip install 'gdnbench[spread]'") from None
    with _remote(scheduler, on) if scheduler is not None else _local(workers, on) as found:
        yield found


@contextmanager
def _local(workers: int | None, on: str) -> Iterator[Pool]:
    from distributed import Client, Nanny, Scheduler, SpecCluster

    gpus = visible_gpus() if on == "cuda" else []
    if on == "cuda" and not gpus:
        raise CannotRunError("--on cuda: no GPU is visible here for workers")
    cores = sorted(os.sched_getaffinity(0))
    count = workers or len(gpus) or len(cores)
    threads = _threads()
    with tempfile.TemporaryDirectory(prefix="gdnbench-spread-") as scratch:
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
                    "preload": [FIRST, *([PINNED.format(_share(cores, number, count))] if on == SIM else [])],
                },
            }
            for number in range(count)
        }
        # A record that its worker died of is tried again by us, who know when it ran alone.
        options = {
            "host": "127.0.0.1",
            "port": 0,
            "dashboard": False,
            "dashboard_address": "127.0.0.1:0",
            "allowed_failures": 0,
        }
        scheduling = {"cls": Scheduler, "options": options}
        with (
            _quiet(),
            SpecCluster(workers=specification, scheduler=scheduling, silence_logs=False) as cluster,
            Client(cluster, set_as_default=False) as client,
            client.as_current(),
        ):
            yield Pool(client, True, threads)


def _threads() -> int:
    """Of torch on a worker: as many as the environment says, where that is one number; 0 is none."""
    said = os.environ.get(THREADS, "")
    return max(1, int(said)) if said.isascii() and said.isdigit() else 1


def _share(cores: Sequence[int], number: int, count: int) -> set[int]:
    """The cores of worker `number` of `count`: no other's where there are enough."""
    return set(cores[number::count]) or {cores[number % len(cores)]}


@contextmanager
def _quiet() -> Iterator[None]:
    """While Dask says nothing on stderr: what becomes of workers, the caller says."""
    handlers = {one: one.level for one in logging.getLogger("distributed").handlers}
    for handler in handlers:
        handler.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for handler, level in handlers.items():
            handler.setLevel(level)


@contextmanager
def _remote(scheduler: str, on: str) -> Iterator[Pool]:
    from distributed import Client

    class Connected(Client):  # type: ignore[misc]  # Dask has no types
        """Collected without a connection, Client waits 20 s for an end of it, then prints a traceback."""

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
        yield Pool(client, False, None, _resources(client, on))


def _resources(client: Client, on: str) -> Mapping[str, float]:
    """What a worker must have for kernels on a device. Where none of them says of GPUs, all are alike."""
    workers = client.scheduler_info()["workers"].values()
    return {GPU: 1.0} if on == "cuda" and any(one["resources"].get(GPU) for one in workers) else {}


def visible_gpus() -> list[str]:
    """The names by which CUDA_VISIBLE_DEVICES may choose one of the GPUs visible here."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def say(text: str) -> None:
    print(f"gdnbench: {text}", file=sys.stderr)
