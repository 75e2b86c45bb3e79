# SPDX-License-Identifier: Apache-2.0
"""Small stores, and workers that the tests of a module share: each imports torch when it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.report.export import record_json
from gdnbench.report.report import ReplayReport
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench.workers.dask_pool import WorkerPool, open_pool

PREFILL: dict[str, Any] = {"seqlens": (1, 63, 0, 70), "heads": (2, 4), "head_dim": (32, 32)}
DECODE: dict[str, Any] = {"batch": 3, "heads": (2, 4), "head_dim": (32, 32), "slots": 9}
OPTIONS = {"gdn_prefill": PREFILL, "gdn_decode": DECODE}


def write(path: Path, *operations: str, seed: int = 0) -> Store:
    """A record of each operation, all different."""
    drafts = [
        draft(op, synthesise(op, **OPTIONS[op], seed=seed + index), index=index)
        for index, op in enumerate(operations)
    ]
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write("0", drafts)
    return Store.open(path)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A prefill, then five calls of decode."""
    path = tmp_path_factory.mktemp("made") / "store.zarr"
    with write(path, "gdn_prefill", *["gdn_decode"] * 5) as opened:
        yield opened


@pytest.fixture(scope="session")
def another(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """As many calls of decode as `store` has, with other numbers in them."""
    path = tmp_path_factory.mktemp("made") / "another.zarr"
    with write(path, *["gdn_decode"] * 6, seed=100) as opened:
        yield opened


@pytest.fixture(scope="session")
def faulty() -> Callable[[str], str]:
    """The kernel name of a function in tests/replay/faulty.py."""
    return lambda name: f"{Path(__file__).parents[1] / 'replay' / 'faulty.py'}:{name}"


@pytest.fixture(scope="module")
def two() -> Iterator[WorkerPool]:
    """Two worker processes of this machine, that could simulate too."""
    with open_pool(2, None, "sim", pin_cores=True) as started:
        yield started


@pytest.fixture(scope="session")
def plain() -> Callable[[ReplayReport], list[dict[str, Any]]]:
    """All that a report says of its records, errors by chunk and head included, and not how long it took."""
    return lambda report: [record_json(one, grids=True) | {"seconds": 0} for one in report.records]


@pytest.fixture
def dies_once(tmp_path: Path) -> tuple[str, Path]:
    """A correct kernel of decode that kills its process the first time it is called, and a file that is there
    from then on."""
    mark, file = tmp_path / "died", tmp_path / "dies_once.py"
    file.write_text(
        "import os, signal\n"
        "from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent\n"
        "def kernel(q, k, v, g, beta, state, state_indices, scale):\n"
        "    call = locals()\n"
        "    try:\n"
        f"        os.close(os.open({str(mark)!r}, os.O_CREAT | os.O_EXCL))\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    except FileExistsError:\n"
        "        return torch_recurrent(**call)\n"
    )
    return f"{file}:kernel", mark


Started = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def dask() -> Iterator[Started]:
    """Starts `python -m dask ARGUMENTS` in a session of its own, which is ended with the module."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *map(str, arguments)]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running.append(subprocess.Popen(command, **quiet, start_new_session=True))  # type: ignore[call-overload]
        return running[-1]

    yield start
    for process in running:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.fixture(scope="module")
def scheduler(dask: Started, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the module's scheduler. It has no workers until a test starts some."""
    return start_scheduler(dask, tmp_path_factory.mktemp("scheduler"))


@pytest.fixture
def empty_scheduler(dask: Started, tmp_path: Path) -> str:
    """The address of a scheduler of one test's own, without workers."""
    return start_scheduler(dask, tmp_path)


def start_scheduler(dask: Started, folder: Path) -> str:
    """Starts a scheduler and returns its address, which it writes to a file in `folder`."""
    file = folder / "scheduler.json"
    dask("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            return str(json.loads(file.read_text())["address"])
        except (OSError, ValueError):
            time.sleep(0.1)
    raise TimeoutError("the scheduler did not start")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Torch here has one thread, as it has in workers: the number changes the order of its sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C as at a terminal: what a shell starts in the background ignores it, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
