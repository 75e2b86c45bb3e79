# SPDX-License-Identifier: Apache-2.0
"""A virtual GPU in the test's own process, and programs that `gdnbench sim -- python ...` runs."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gdnbench.sim.virtual import VirtualGpu, virtual_gpu

ROOT = Path(__file__).resolve().parents[3]
START_UP_LINES = ROOT / "gdnbench_capture.pth"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    """A B200 with 3 SMs."""
    with virtual_gpu("b200", sms=3) as made:
        yield made


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which Python starts with this tree's start-up lines, installed or not."""
    folders = {sysconfig.get_path("purelib"), *site.getsitepackages()}
    installed = [Path(folder) / START_UP_LINES.name for folder in folders]
    lines = START_UP_LINES.read_text(encoding="utf-8")
    paths = [str(ROOT), str(ROOT / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])]
    if not any(path.is_file() and path.read_text(encoding="utf-8") == lines for path in installed):
        folder = tmp_path_factory.mktemp("start_up")
        (folder / "sitecustomize.py").write_text(lines, encoding="utf-8")
        paths.insert(0, str(folder))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture
def run_sim(tmp_path: Path, environment: dict[str, str]) -> Run:
    """`run_sim(*arguments)` is `gdnbench sim ARGUMENTS` in a process of its own."""

    def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gdnbench", "sim", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
            timeout=240,
        )

    return run_command


@pytest.fixture
def run(tmp_path: Path, run_sim: Run) -> Run:
    """`run(text, *arguments, options=())` is `gdnbench sim OPTIONS -- python program.py ARGUMENTS`."""

    def run_program(
        text: str, *arguments: str, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(text, encoding="utf-8")
        return run_sim(*options, "--", sys.executable, str(program), *arguments)

    return run_program
