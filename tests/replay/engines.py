# SPDX-License-Identifier: Apache-2.0
"""Runs kernels of an engine on the simulator with a folder of its packages, which tests do not install."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
INVERSE = "model_executor/layers/mamba/ops/gdn_chunk_cutedsl/kernel_kkt_inv_uw.py"
ROUNDS = "for _ in cutlass.range_constexpr({}):\n                    # First MMA: -AiM = Ai @ (-M)"


def folder(variable: str, engine: str, install: str) -> str:
    """The folder that the environment variable names; skips the test if it names none."""
    if not (found := os.environ.get(variable)):
        pytest.skip(f"{variable} names no folder with {engine}: {install}")
    return found


def copy_package(packages: str | Path, name: str, to: Path) -> Path:
    """A copy of a package below `to`, to plant faults in, without its compiled extensions."""
    compiled = shutil.ignore_patterns("__pycache__", "*.so")
    return Path(shutil.copytree(Path(packages) / name, to / name, ignore=compiled))


def vllm_with_three_rounds(packages: str | Path, engine: Path) -> Path:
    """A folder of packages, `engine`, with a copy of vLLM whose inverse of prefill has three Newton-Schulz
    rounds instead of four; the other packages are links."""
    engine.mkdir()
    for entry in Path(packages).iterdir():
        if entry.name != "vllm":
            (engine / entry.name).symlink_to(entry.resolve())
    file = copy_package(packages, "vllm", engine) / INVERSE
    text = file.read_text()
    assert text.count(ROUNDS.format(4)) == 1
    file.write_text(text.replace(ROUNDS.format(4), ROUNDS.format(3)))
    return engine


def write_vllm_adapter(path: Path) -> Path:
    """Writes the adapter of vLLM's CuTe DSL prefill that docs/adding.md has."""
    found = re.search(
        r"```python file=theirs.py\n(.*?)```", (ROOT / "docs" / "adding.md").read_text(), re.DOTALL
    )
    assert found is not None
    path.write_text(found[1])
    return path


def replay(packages: str, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and records of the command, whose packages are in `packages`."""
    command = [sys.executable, "-m", "gdnbench", "replay", *words, "--on", "sim", "--kernel-env", packages]
    done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["records"]


def shared_memory_races(packages: str, kernel: str) -> list[tuple[str, int, int]]:
    """Races in shared memory that the checker finds on two chunks with four SMs: the file, the line of the
    store and that of the load."""
    gpu = ("--machine", "b200", "--sms", "4", "--check", "--keep-going")
    _, (record,) = replay(packages, "captures/prefill.zarr.zip", "3", "--kernel", kernel, *gpu)
    found = []
    for finding in record["findings"]:
        evidence = finding["evidence"]
        if finding["severity"] == "error" and finding["kind"] == "race" and evidence["memory"] == "shared":
            places = {
                evidence[one]["does"].split(".")[0]: evidence[one]["place"] for one in ("first", "second")
            }
            found.append((Path(finding["file"]).name, places["st"]["file_line"], places["ld"]["file_line"]))
    return found
