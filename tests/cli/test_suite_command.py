# SPDX-License-Identifier: Apache-2.0
"""`gdnbench suite` and `gdnbench baseline` as commands: what they print, and their exit status."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.messages import wording

Invoke = Any
ROOT = Path(__file__).resolve().parents[2]

SUITE = 'baselines = "accepted.json"\n[[replay]]\ncaptures = "prefills.zarr"\nkernels = "torch"\n'
KNOWN = '[[known]]\nentry = "*"\nreason = "as ever"\nuntil = {until}\n'


@pytest.fixture
def suite(prefills: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite of two small prefill records, in the current folder."""
    monkeypatch.chdir(prefills.parent)
    path = Path("suite.toml")
    path.write_text(SUITE)
    return path


def test_a_suite_then_its_baseline_then_the_suite_again(gdnbench: Invoke, suite: Path) -> None:
    first = gdnbench("suite", suite)
    assert first.code == 0
    assert "2 pass" in first.out
    assert re.search(wording("suite.not-accepted-yet", tensors=4), first.out)
    command = "gdnbench baseline update suite.toml suite.results --reason WHY"
    assert command in first.out
    assert re.search(wording("cli.suite-entry", number=1, entries=1, name="prefills.torch.cpu"), first.err)
    blank = gdnbench("baseline", "update", suite, "suite.results", "--reason", " ")
    assert (blank.code, blank.out) == (2, "")
    assert gdnbench("baseline", "update", suite, "suite.results").code == 2
    assert gdnbench("baseline", "show", suite).code == 2  # nothing is accepted yet
    update = gdnbench("baseline", "update", suite, "suite.results", "--reason", "the first")
    assert update.out.endswith("4 changed in accepted.json\n")
    shown = json.loads(gdnbench("baseline", "show", suite, "--json").out)
    assert {(row["capture"], row["kernel"], row["on"], row["tensor"]) for row in shown} == {
        ("prefills.zarr", "torch", "cpu", "o"),
        ("prefills.zarr", "torch", "cpu", "final_state"),
    }
    assert "the first" in gdnbench("baseline", "history", suite).out
    again = gdnbench("suite", suite, "--json")
    document = json.loads(again.out)
    assert (again.code, document["exit_code"]) == (0, 0)
    assert document["entries"][0]["baseline"]["compared"] == 4


def test_failures_known_ones_and_expired_ones(gdnbench: Invoke, suite: Path) -> None:
    failing = SUITE + "tol = 0\n"
    suite.write_text(failing)
    result = gdnbench("suite", suite)
    assert result.code == 1
    assert "gdnbench replay prefills.zarr 1 --kernel torch --on cpu --tol 0.0,0.0" in result.out
    suite.write_text(failing + KNOWN.format(until="9999-12-31"))
    known = gdnbench("suite", suite)
    assert known.code == 0
    assert "2 known failure" in known.out
    assert "as ever, until 9999-12-31" in known.out
    suite.write_text(failing + KNOWN.format(until="2020-01-01"))
    expired = gdnbench("suite", suite)
    assert expired.code == 1
    assert re.search(wording("suite.known-over", until="2020-01-01", reason="as ever"), expired.out)
    suite.write_text(SUITE + KNOWN.format(until="9999-12-31"))
    passing = gdnbench("suite", suite)
    assert passing.code == 0
    known = wording("suite.known-passes", where="suite.toml: [[known]] 1", known="*")
    assert re.search(known, passing.out)


def test_the_command_that_repeats_a_failure_fails_too(gdnbench: Invoke, suite: Path) -> None:
    suite.write_text(SUITE + "tensors = { o = { tol = 0 } }\n")
    document = json.loads(gdnbench("suite", suite, "--json").out)
    failure = document["entries"][0]["failures"][0]
    words = failure["command"].split()[1:]
    assert "--rule" in words
    replayed = gdnbench(*words, "--json")
    assert replayed.code == 1
    (record,) = json.loads(replayed.out)["records"]
    assert record["key"] == failure["record"]
    assert [tensor["tensor"] for tensor in record["tensors"] if not tensor["passed"]] == ["o"]


def test_entries_and_records_are_picked(gdnbench: Invoke, suite: Path) -> None:
    found = json.loads(gdnbench("suite", suite, "--records", "1", "--json").out)
    assert found["entries"][0]["records"] == 1
    assert gdnbench("suite", suite, "--records", "7").code == 2
    found = json.loads(gdnbench("suite", suite, "--records", "1-999999999999", "--json").out)
    assert found["entries"][0]["records"] == 1  # a range is looked into and never listed
    wrong = gdnbench("suite", suite, "--entry", "none*")
    assert wrong.code == 2
    assert wrong.err.count("\n") == 1


def test_a_wrong_suite_is_one_line(gdnbench: Invoke, suite: Path) -> None:
    suite.write_text(SUITE + "kernls = 1\n")
    result = gdnbench("suite", suite)
    assert (result.code, result.out) == (2, "")
    assert re.match(
        wording("suite.key-unknown", where="gdnbench: suite.toml: [[replay]] 1", key="kernls"), result.err
    )
    assert not Path("suite.results").exists()


@pytest.mark.parametrize("texts", ["o", "o=k", "o=k:x", "o=tol:1,2,3", "o=bitwise:1", "=k:1"])
def test_a_rule_that_is_none_is_refused(gdnbench: Invoke, suite: Path, texts: str) -> None:
    result = gdnbench("replay", "prefills.zarr", "--rule", texts)
    assert result.code == 2
    assert re.search(wording("cli.rule-wrong"), result.err)


def script(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """scripts/ci_replay.sh of a checkout that is set up, with a `gdnbench` that tells how it was called and
    exits as it is told to."""
    checkout = folder / "checkout"
    (checkout / "scripts").mkdir(parents=True, exist_ok=True)
    (checkout / "bin").mkdir(exist_ok=True)
    (checkout / "scripts/ci_replay.sh").write_text((ROOT / "scripts/ci_replay.sh").read_text())
    (checkout / "scripts/setup.sh").write_text(
        'set -euo pipefail\ncd "$(dirname "${BASH_SOURCE[0]}")/.."\nexport PATH="$PWD/bin:$PATH"\n'
    )
    program = checkout / "bin/gdnbench"
    program.write_text(
        '#!/bin/sh\necho "$PWD:" "$@"\nmkdir -p "$4"\necho told > "$4/summary.md"\nexit $STATUS\n'
    )
    program.chmod(0o755)
    return subprocess.run(
        ["bash", str(checkout / "scripts/ci_replay.sh"), *arguments],
        cwd=folder,
        env={**os.environ, "STATUS": "0", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("status", [0, 1, 2, 3, 130])
def test_the_script_has_the_status_of_the_suite(tmp_path: Path, status: int) -> None:
    assert script(tmp_path, STATUS=str(status)).returncode == status


def test_the_script_runs_the_suite_of_the_repository_or_another(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    own = script(tmp_path)
    assert own.stdout == f"{tmp_path}: suite {checkout}/suites/captures.toml -o {checkout}/build/replays\n"
    other = script(tmp_path, "my captures", "--entry", "x*", GDNBENCH_RESULTS="out")
    assert other.stdout == f"{tmp_path}: suite my captures -o out --entry x*\n"
    option = script(tmp_path, "--workers", "2")
    assert "captures.toml" in option.stdout
    assert option.stdout.endswith("--workers 2\n")


def test_the_script_adds_to_the_summary_of_a_job(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n")
    script(tmp_path, STATUS="1", GITHUB_STEP_SUMMARY=str(page))
    assert page.read_text() == "before\ntold\n"


def test_the_documented_job_is_one(tmp_path: Path) -> None:
    text = (ROOT / "docs/ci.md").read_text()
    job = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    steps = job["jobs"]["replay"]["steps"]
    (replays,) = (step for step in steps if "run" in step)
    assert (ROOT / replays["run"]).is_file()
    assert os.access(ROOT / replays["run"], os.X_OK)
    (kept,) = (step for step in steps if "upload-artifact" in step.get("uses", ""))
    assert kept["with"]["path"] == replays["env"]["GDNBENCH_RESULTS"]
    assert kept["if"] == "always()"


def test_the_suite_of_the_repository_is_right_and_its_baseline_whole() -> None:
    """Every tensor that it judges has an accepted error; what they are is for the suite itself."""
    from gdnbench.suite.baseline import Baseline
    from gdnbench.suite.read import read_suite

    suite = read_suite(ROOT / "suites/captures.toml")
    assert suite.baselines is not None
    baseline = Baseline.read(suite.baselines)
    assert {entry.key for entry in suite.entries} == {key[:3] for key in baseline.accepted}
    assert {entry.on for entry in suite.entries} == {"cpu", "sim"}
    captures = {path.name for path in (ROOT / "captures").glob("*.zarr.zip")}
    assert {Path(entry.capture).name for entry in suite.entries} == captures


def test_the_documented_suite_is_read(tmp_path: Path, gdnbench: Invoke) -> None:
    """The example of docs/ci.md, beside captures of this repository."""
    from gdnbench.suite.read import read_suite

    text = (ROOT / "docs/ci.md").read_text().partition("relative to it.\n\n")[2].partition("\n`made = ")[0]
    lines = (line.removeprefix("    ") for line in text.splitlines())
    (tmp_path / "suites").mkdir()
    (tmp_path / "captures").symlink_to(ROOT / "captures")
    (tmp_path / "suites/suite.toml").write_text("\n".join(lines))
    suite = read_suite(tmp_path / "suites/suite.toml")
    assert {entry.name for entry in suite.entries} >= {"decode.hf.cpu", "strict.decode.cute.sim"}
    assert len(suite.known) == 1
