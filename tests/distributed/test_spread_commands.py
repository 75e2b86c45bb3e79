# SPDX-License-Identifier: Apache-2.0
"""`gdnbench replay --workers` and `--scheduler`: what is refused, what is missing, and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gdnbench.cli.main import console_main
from gdnbench.store.reader import Store
from tests.messages import wording


def gdnbench(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "gdnbench", *map(str, arguments)]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """The exit status and stderr of a command that ends in this process."""

    def command(*arguments: object) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["gdnbench", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            console_main()
        return left.value.code, capfd.readouterr().err

    return command


@pytest.mark.parametrize(
    "options",
    [
        ("--time",),
        ("--schedule", "late", "--on", "sim"),
        ("--shape", "0", "--on", "sim"),
        ("--scheduler", "tcp://127.0.0.1:1"),
    ],
    ids=lambda options: options[0],
)
def test_what_does_not_go_with_workers(store: Store, ended: Any, options: tuple[str, ...]) -> None:
    status, said = ended("replay", store.path, "--workers", 0, *options)
    assert status == 2
    assert "--workers" in said
    assert options[0] in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("option", [("--workers", 2), ("--scheduler", "tcp://127.0.0.1:1")])
def test_without_dask(
    store: Store, ended: Any, monkeypatch: pytest.MonkeyPatch, option: tuple[object, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    status, said = ended("replay", store.path, *option)
    assert status == 3
    assert re.fullmatch("gdnbench: " + wording("distributed.dask-missing") + "\n", said)


@pytest.mark.slow  # processes that import torch
def test_the_command_prints_what_the_serial_one_does(store: Store) -> None:
    """On stdout; stderr stays empty."""
    printed = []
    for workers in ((), ("--workers", 2)):
        command = gdnbench("replay", store.path, "0-2", "--json", *workers)
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
        assert done.stderr == ""
        document = json.loads(done.stdout)
        for record in document["records"]:
            record["seconds"] = 0
        printed.append(document)
    assert printed[0] == printed[1]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def session(leader: int) -> list[int]:
    """Processes of a session, by field 6 of /proc/PID/stat, proc(5); zombies are gone."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def eventually(true: Any) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow  # starts workers; test_interrupt.py interrupts those of a process
@pytest.mark.parametrize("interrupt", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_nothing_is_left_running(store: Store, tmp_path: Path, interrupt: signal.Signals) -> None:
    """Two kernels hang, each in a process and session of its own, when the command ends. What was finished
    before is kept by a command that is only interrupted."""
    kernel = tmp_path / "hangs.py"
    kernel.write_text(
        "import os, pathlib, time\n"
        "from gdnbench_kernels.gdn_prefill.torch_chunked import torch_chunked\n"
        "def kernel(q, k, v, g, beta, cu_seqlens=None, state=None, chunk_size=64, scale=None):\n"
        "    if state is None:\n"
        "        return torch_chunked(q=q, k=k, v=v, g=g, beta=beta, cu_seqlens=cu_seqlens,\n"
        "                             chunk_size=chunk_size, scale=scale)\n"
        f"    pathlib.Path({str(tmp_path)!r}, f'{{os.getpid()}}.hangs').touch()\n"
        "    time.sleep(600)\n"
    )
    saved = tmp_path / "run.zarr"
    options = ("--kernel", f"{kernel}:kernel", "--workers", 2, "--save", saved)
    command = subprocess.Popen(
        gdnbench("replay", store.path, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        eventually(lambda: len(list(tmp_path.glob("*.hangs"))) == 2)
        hanging = [int(path.stem) for path in tmp_path.glob("*.hangs")]
        assert all(map(alive, hanging))
        time.sleep(5)  # what a worker finished before it hangs is on its way to the command
        # As a terminal does it: to the command and its workers alike.
        (os.killpg if interrupt is signal.SIGINT else os.kill)(command.pid, interrupt)
        out, said = command.communicate(timeout=120)
        eventually(lambda: not session(command.pid) and not any(map(alive, hanging)))
    finally:
        for pid in session(command.pid):
            os.kill(pid, signal.SIGKILL)
    assert out == ""
    if interrupt is signal.SIGINT:
        assert command.returncode == 130
        assert re.fullmatch("gdnbench: " + wording("cli.interrupted") + "\n", said)
        with Store.open(saved) as run_store:
            assert [record.info.op for record in run_store.records] == ["gdn_prefill"]
    elif saved.exists():
        with Store.open(saved) as run_store:
            assert run_store.damaged == ()
            assert {record.info.op for record in run_store.records} <= {"gdn_prefill"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".hangs") in (
        ["__pycache__", "hangs.py", "run.zarr"],
        ["hangs.py", "run.zarr"],
        ["__pycache__", "hangs.py"],
        ["hangs.py"],
    )
