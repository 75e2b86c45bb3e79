"""`scripts/public_kernels.py`: its rows, how it reads a run, and a run of a small program."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from gdnbench.errors import Exit
from scripts import public_kernels
from scripts.public_kernels import PACKAGES, Row, describe_failure, outcome_of, read_rows
from tests.sim.virtual.test_explore_launches import PTX, WAIT

# Launches `copy` of PTX once and compares what it copied.
PROGRAM = """
import torch
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.virtual import current_gpu

x, y = torch.full((4,), 7.0, device="cuda"), torch.zeros(4, device="cuda")
params = tuple(tensor.data_ptr().to_bytes(8, "little") for tensor in (x, y))
request = LaunchRequest("", "copy", (1, 1, 1), (1, 1, 1), (1, 1, 1), 0, params, None, 0)
current_gpu().run(parse({ptx!r}), [request])
assert y[0] == 7
"""


def test_rows_are_named_once_and_of_packages_that_have_an_option() -> None:
    rows = read_rows()
    assert len({row.name for row in rows}) == len(rows)
    assert {row.package for row in rows} <= set(PACKAGES)
    scripts = [row.command[0] for row in rows if row.package == "flash_attention"]
    assert all(Path(script).is_file() for script in scripts)


def test_what_is_not_given_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["public_kernels.py", "--only", "HCA*"])
    assert public_kernels.main() == Exit.CANNOT_RUN
    assert "--flashinfer is not given" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["public_kernels.py", "--only", "none"])
    assert public_kernels.main() == Exit.BAD_INPUT


def printed(launches: list[object], explored: list[object], refused: list[str], status: int = 0) -> str:
    document = {
        "ok": False,
        "program_status": status,
        "launches": launches,
        "explored": explored,
        "sms": [],
        "refused": refused,
        "problems": [],
    }
    return f"{{\nits own output\n{json.dumps(document, indent=2)}\ngdnbench: a note\n"


def test_a_run_is_read_from_the_json_behind_the_output() -> None:
    error = {"severity": "error", "message": "a race"}
    launch = {"number": 0, "entry": "k", "finished": True, "findings": [error, {"severity": "review"}]}
    explored = {"refused": "", "depends": True, "number": 0, "entry": "k", "difference": None, "findings": []}
    wrong = outcome_of(1, printed([launch], [explored], []))
    assert (wrong.reference, wrong.bits, wrong.checker) == ("pass", "1 of 1 differ", "1 error, 1 to review")
    assert "a race" in describe_failure(Row("r", "cutlass", ()), wrong)
    right = outcome_of(0, printed([{**launch, "findings": []}], [{**explored, "depends": False}], []))
    assert (right.reference, right.bits, right.checker) == ("pass", "1 equal", "clean")
    refused = outcome_of(1, printed([], [], ["tcgen05.mma"], 1))
    assert (refused.reference, refused.bits, refused.checker) == ("refused", "-", "refused")
    killed = outcome_of(9, "its own output\n")
    assert (killed.reference, killed.checker) == ("status 9", "-")
    assert "its own output" in describe_failure(Row("r", "cutlass", ()), killed)


@pytest.mark.slow  # programs
def test_a_program_runs_in_both_engines_and_under_the_checker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    ptx = PTX.replace("@INDEX@", "")
    (tmp_path / "sub/right.py").write_text(PROGRAM.format(ptx=ptx.replace("@WAIT@", WAIT)))
    (tmp_path / "sub/wrong.py").write_text(PROGRAM.format(ptx=ptx.replace("@WAIT@", "")))
    rows = [
        Row("right", "cutlass", ("right.py",), folder="sub"),
        Row("wrong", "cutlass", ("wrong.py",), folder="sub", wrong="it does not wait"),
    ]
    monkeypatch.setattr(public_kernels, "read_rows", lambda: rows)
    monkeypatch.setattr(sys, "argv", ["public_kernels.py", "--cutlass", str(tmp_path)])
    assert public_kernels.main() == Exit.PASS
    said = capsys.readouterr().err
    assert "right; pass; 1 equal; clean" in said
    assert "wrong: known: it does not wait" in said
    assert re.search(r"wrong; status 1; 1 of 1 differ; \d error", said)
