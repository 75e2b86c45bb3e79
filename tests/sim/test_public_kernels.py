# SPDX-License-Identifier: Apache-2.0
"""`scripts/public_kernels.py`: its rows, how it reads a run, and a run of a small program."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from gdnbench.errors import Exit
from gdnbench.sim.finding import Finding, Severity
from scripts import public_kernels
from scripts.public_kernels import (
    PACKAGES,
    Outcome,
    Row,
    compare_failures,
    describe_failure,
    list_failures,
    outcome_of,
    read_rows,
)
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

FAILURES = ("byte 0", "cp.async", "never written", "the program ended with status 1")


def test_rows_are_named_once_and_of_packages_that_have_an_option() -> None:
    rows = read_rows()
    assert len({row.name for row in rows}) == len(rows)
    assert {row.package for row in rows} <= set(PACKAGES)
    scripts = [row.command[0] for row in rows if row.package == "flash_attention"]
    assert all(Path(script).is_file() for script in scripts)


def test_the_page_has_each_row_and_explains_its_errors() -> None:
    page = (public_kernels.ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    section = page.split("\n## Both engines, three schedules, the checker\n")[1].split("\n## ")[0]
    cells = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    rows = {name.removeprefix("| "): cells for name, *cells in cells[1:]}
    explained = re.findall(r"^(\d+)\. ", section, re.MULTILINE)
    assert list(rows) == [row.name for row in read_rows()]
    for row in read_rows():
        numbers = re.findall(r"\[(.*)\]", rows[row.name][2])
        assert len(numbers) == bool(row.wrong), row.name
        assert set(", ".join(numbers).split(", ")) <= {"", *explained}, row.name


def test_what_is_not_given_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["public_kernels.py", "--only", "*HCA*"])
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


def finding(message: str, severity: Severity = Severity.ERROR) -> dict[str, object]:
    return Finding(severity, "race", message, 0, file="kernel.py", line=7).as_json()


def test_a_run_is_read_from_the_json_behind_the_output() -> None:
    findings = [finding("a race"), finding("a fence", Severity.REVIEW)]
    launch = {"number": 0, "entry": "k", "finished": True, "findings": findings}
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


def test_each_failure_of_a_run_is_a_line() -> None:
    difference = {"tensor": "lse", "place": "element [1] is 2 under late and 3 under early"}
    depends = {
        "depends": True,
        "number": 4,
        "entry": "k" * 100,
        "difference": difference,
        "findings": [{"finding": finding("freed"), "under": ["early"], "not_under": ["late"]}],
    }
    races = [finding("a race"), finding("a race"), finding("x", Severity.REVIEW)]
    launches = [{"number": number, "entry": "k", "findings": races} for number in (5, 6)]
    assert list_failures(Outcome(1, "", launches, [depends], (), 3)) == [
        f"launch 4, {'k' * 60}: the runs differ: lse: element [1] is 2 under late and 3 under early",
        f"launch 4, {'k' * 60}: under early: freed at kernel.py:7",
        "launches 5, 6, k: a race at kernel.py:7",
        "the program ended with status 3",
    ]


def test_another_failure_is_not_taken_for_the_known_one() -> None:
    row = Row("r", "cutlass", (), wrong="it races", failures=("a race at kernel", "ended with status"))

    def outcome(status: int, *messages: str) -> Outcome:
        launch = {"number": 0, "entry": "k", "findings": [finding(message) for message in messages]}
        return Outcome(1, "", [launch], program_status=status)

    assert compare_failures(row, [outcome(3), outcome(0, "a race")], all_runs=True) == []
    assert compare_failures(row, [outcome(3, "a race", "a leak")], all_runs=True) == [
        "not the known fault: launch 0, k: a leak at kernel.py:7"
    ]
    assert compare_failures(row, [outcome(3)], all_runs=True) == ["no failure matches 'a race at kernel'"]
    assert compare_failures(row, [outcome(3)], all_runs=False) == []
    assert compare_failures(row, [Outcome(1, "")], all_runs=False) == [
        "not the known fault: exit status 1, 0 launches"
    ]
    assert len(compare_failures(row, [], all_runs=True)) == 2
    with pytest.raises(ValueError, match="r: `wrong` and `failures` are given together"):
        Row("r", "cutlass", (), wrong="it races")


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
        Row("wrong", "cutlass", ("wrong.py",), folder="sub", wrong="it does not wait", failures=FAILURES),
        Row("other", "cutlass", ("wrong.py",), folder="sub", wrong="another", failures=FAILURES[1:]),
    ]
    monkeypatch.setattr(public_kernels, "read_rows", lambda: rows)
    monkeypatch.setattr(sys, "argv", ["public_kernels.py", "--cutlass", str(tmp_path)])
    assert public_kernels.main() == Exit.MISMATCH
    said = capsys.readouterr().err
    assert "right; pass; 1 equal; clean" in said
    assert "wrong: known: it does not wait" in said
    assert re.search("other: not only the known fault: another\n  not the known fault: .* byte 0", said)
    assert re.search(r"wrong; status 1; 1 of 1 differ; \d error", said)
