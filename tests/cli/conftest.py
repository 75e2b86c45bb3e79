# SPDX-License-Identifier: Apache-2.0
"""Runs the command line in this process, as the console script does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gdnbench.cli.main import console_main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Invoke = Callable[..., Result]


@pytest.fixture
def gdnbench(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Invoke:
    """`gdnbench("ls", store)` -> exit code, stdout and stderr."""

    def invoke(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["gdnbench", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            console_main()
        out, err = capfd.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else 0, out, err)

    return invoke


@pytest.fixture
def prefills(gdnbench: Invoke, tmp_path: Path) -> Path:
    """Two small prefill records."""
    store = tmp_path / "prefills.zarr"
    options = ("--seqlens", "1,70", "--heads", "1,2", "--head-dim", "16,32", "--seed", "7", "--count", "2")
    assert gdnbench("synth", store, "--op", "gdn_prefill", *options).code == 0
    return store
