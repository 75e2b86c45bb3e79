# SPDX-License-Identifier: Apache-2.0
"""Suites that run: small captures through torch's kernel and one of a user's, and what is left on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer

from gdnbench.errors import BadInputError, CannotRunError, Exit
from gdnbench.report.runs import read_run
from gdnbench.suite.plan import Entry
from gdnbench.suite.read import read_suite, restrict_to_entries
from gdnbench.suite.result import SuiteResult, replay_words
from gdnbench.suite.run import run_suite
from gdnbench.suite.schema import WORSE
from gdnbench.suite.update import update_baseline
from tests.messages import wording

Write = Callable[[str], Path]
TODAY = date(2026, 6, 1)

TWO = 'baselines = "accepted.json"\n[[replay]]\ncaptures = "*.zarr"\nkernels = "torch"\n'
# No bfloat16 is what the oracle has in fp64: every record fails.
FAILING = TWO + "[defaults]\ntol = 0\n"
DRIFTING = f"""
baselines = "accepted.json"
[[replay]]
captures = "decode.zarr"
kernels = "{Path(__file__).with_name("drifting.py")}:decode"
tol = 1.0
isolate = false
"""


def run(path: Path, **options: Any) -> SuiteResult:
    return run_suite(read_suite(path), path.parent / "results", today=TODAY, **options)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results/summary.json").read_text())
    return found


def test_a_passing_suite_leaves_its_results(suite_file: Write, folder: Path) -> None:
    result = run(suite_file(TWO))
    assert result.exit_code is Exit.PASS
    found = summary(folder)
    assert (found["state"], found["exit_code"], found["schema"]) == ("finished", 0, 1)
    assert found["provenance"]["python"]
    for entry, records in zip(found["entries"], (2, 1), strict=True):
        assert entry["outcomes"] == {"pass": records}
        kept = read_run(folder / "results" / entry["run"])
        assert len(kept.records) == records
        # What may be accepted is what the run store has of the same tensors.
        for record in kept.records:
            theirs = {
                tensor["tensor"]: {name: tensor["errors"][name] for name in ("rms", "max_abs")}
                for tensor in record["tensors"]
            }
            assert entry["errors"][record["key"]] == theirs
    assert {path.name for path in (folder / "results").iterdir()} == {
        "summary.json",
        "summary.md",
        "junit.xml",
        "runs",
    }


def test_missing_errors_are_told_then_accepted_then_held_to(suite_file: Write, folder: Path) -> None:
    path = suite_file(TWO)
    first = run(path)
    assert summary(folder)["entries"][0]["baseline"]["missing"] == 4
    assert first.update is not None
    assert first.update.startswith("gdnbench baseline update ")
    assert len(update_baseline(read_suite(path), folder / "results", "first")) == 6
    again = run(path)
    assert summary(folder)["entries"][0]["baseline"] == {
        "compared": 4,
        "missing": 0,
        "worse": [],
        "better": [],
    }
    assert again.update is None


def test_a_kernel_three_times_worse_fails_inside_its_tolerance(
    suite_file: Write, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    path = suite_file(DRIFTING)
    codes, told = [], []
    for hundredths in (1, 1, 3, 0.1):
        (folder / "hundredths").write_text(str(hundredths))
        result = run(path)
        codes.append(int(result.exit_code))
        told.append([verdict.outcome for _, verdict in result.verdicts()])
        if len(codes) == 1:
            update_baseline(read_suite(path), folder / "results", "as it is")
        if hundredths == 3:
            worse = summary(folder)["entries"][0]["baseline"]["worse"]
            text = (folder / "results/summary.md").read_text()
    assert codes == [0, 0, 1, 0]
    assert told == [["pass"], ["pass"], [WORSE], ["pass"]]
    assert {(one["tensor"], one["metric"], one["factor"]) for one in worse} == {
        ("o", "rms", 2.0),
        ("o", "max_abs", 2.0),
    }
    # Three times the error, but for that of torch's kernel itself.
    assert all(one["now"] == pytest.approx(3 * one["accepted"], rel=0.2) for one in worse)
    assert "What failed" in text
    assert "gdnbench replay " in text
    # Ten times better proposes itself.
    assert summary(folder)["entries"][0]["baseline"]["better"]
    assert result.update is not None


def test_failures_come_first_with_what_replays_them(suite_file: Write, folder: Path) -> None:
    result = run(suite_file(FAILING.replace("[[replay]]", "[[replay]]\nstages = true")))
    assert result.exit_code is Exit.MISMATCH
    (failure, other) = summary(folder)["entries"][0]["failures"]
    words = failure["command"].split()
    assert words[:2] == ["gdnbench", "replay"]
    assert words[3:] == ["0", "--kernel", "torch", "--on", "cpu", "--tol", "0.0,0.0", "--stages"]
    assert Path(words[2]).resolve() == folder / "both.zarr"
    assert other["number"] == 1
    text = (folder / "results/summary.md").read_text()
    assert text.index("## What failed") < text.index("| entry |")
    assert failure["command"] in text


def test_junit_has_a_suite_an_entry_and_a_case_a_record(suite_file: Write, folder: Path) -> None:
    known = '[[known]]\nentry = "both.torch.cpu"\nrecord = "0"\nreason = "a < b"\nuntil = 2026-06-01\n'
    run(suite_file(FAILING + known))
    root = ElementTree.parse(folder / "results/junit.xml").getroot()
    assert root.tag == "testsuites"
    assert [suite.get("name") for suite in root] == ["both.torch.cpu", "decode.torch.cpu"]
    expected = [
        {"tests": 2, "failures": 1, "errors": 0, "skipped": 1},
        {"tests": 1, "failures": 1, "errors": 0, "skipped": 0},
    ]
    for suite, counts in zip(root, expected, strict=True):
        assert {name: int(suite.get(name, "")) for name in counts} == counts
        cases = suite.findall("testcase")
        assert len(cases) == counts["tests"]
        assert sum(case.find("failure") is not None for case in cases) == counts["failures"]
        assert sum(case.find("skipped") is not None for case in cases) == counts["skipped"]
        assert all(
            case.get("classname") == suite.get("name") and float(case.get("time", "x")) >= 0 for case in cases
        )
        assert [one.get("name") for one in suite.findall("properties/property")] == [
            "capture",
            "kernel",
            "on",
        ]
    assert {name: int(root.get(name, "")) for name in expected[0]} == {
        "tests": 3,
        "failures": 2,
        "errors": 0,
        "skipped": 1,
    }
    skipped = root.find("testsuite/testcase/skipped")
    assert skipped is not None
    assert "a < b" in skipped.get("message", "")


@pytest.mark.parametrize(("optional", "code"), [("", Exit.CANNOT_RUN), ("optional = true\n", Exit.PASS)])
def test_what_cannot_run_here(
    suite_file: Write, folder: Path, monkeypatch: pytest.MonkeyPatch, optional: str, code: Exit
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run(suite_file(TWO.replace("*.zarr", "decode.zarr") + 'on = ["cuda", "cpu"]\n' + optional))
    assert result.exit_code is code
    gpu, cpu = summary(folder)["entries"]
    assert "CUDA" in gpu["error"] or "GPU" in gpu["error"]
    assert gpu["run"] is None
    assert cpu["outcomes"] == {"pass": 1}  # the rest runs all the same
    assert ElementTree.parse(folder / "results/junit.xml").getroot().get("skipped") == "1"


def test_an_interrupt_keeps_what_is_finished(suite_file: Write, folder: Path) -> None:
    def interrupt(entry: Entry, done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    result = run(suite_file(TWO), progress=interrupt)
    assert result.interrupted
    found = summary(folder)
    assert (found["state"], found["not_run"]) == ("interrupted", ["decode.torch.cpu"])
    (entry,) = found["entries"]
    assert (entry["interrupted"], entry["records"], entry["expected"]) == (True, 1, 2)
    assert len(read_run(folder / "results" / entry["run"]).records) == 1
    assert "interrupted in entry 1 of 2" in (folder / "results/summary.md").read_text()
    # The entry that was interrupted, and the one that has not run.
    assert ElementTree.parse(folder / "results/junit.xml").getroot().get("errors") == "2"


class Killed(BaseException):
    """Ends a run at once, as a signal does that cannot be caught."""


@pytest.mark.parametrize("at", [0, 1])
def test_a_run_that_is_killed_leaves_nothing_of_an_earlier_one_and_can_be_repeated(
    suite_file: Write, folder: Path, at: int
) -> None:
    def kill(entry: Entry, done: int, total: int) -> None:
        if done == at:
            raise Killed

    path = suite_file(TWO)
    run(path)
    with pytest.raises(Killed):
        run(path, progress=kill)
    found = summary(folder)
    assert (found["state"], found["entries"]) == ("running", [])
    assert found["not_run"] == ["both.torch.cpu", "decode.torch.cpu"]
    assert ElementTree.parse(folder / "results/junit.xml").getroot().get("errors") == "2"
    (folder / "results/.summary.json.0123456789abcdef").write_text("{")  # killed while it was written
    assert run(path).exit_code is Exit.PASS
    assert summary(folder)["state"] == "finished"
    assert not (folder / "results/.summary.json.0123456789abcdef").exists()


def test_one_run_at_a_time_has_the_folder(suite_file: Write, folder: Path) -> None:
    path = suite_file(TWO)
    refusals = []

    def second(entry: Entry, done: int, total: int) -> None:
        with pytest.raises(BadInputError, match=wording("suite.results-busy")) as refused:
            run(path)
        refusals.append(refused)

    assert run(path, progress=second).exit_code is Exit.PASS
    assert refusals
    assert summary(folder)["state"] == "finished"


def test_results_replace_those_of_an_earlier_run_and_nothing_else(suite_file: Write, folder: Path) -> None:
    path = suite_file(TWO)
    run(path)
    suite = restrict_to_entries(read_suite(path), "decode*")
    run_suite(suite, folder / "results", today=TODAY, whole=False)
    assert [one.name for one in (folder / "results/runs").iterdir()] == ["decode.torch.cpu.zarr"]
    (folder / "results/notes.txt").write_text("mine")
    with pytest.raises(BadInputError, match=wording("suite.results-strange", file="notes.txt")):
        run(path)
    (folder / "other/runs").mkdir(parents=True)
    with pytest.raises(BadInputError, match=wording("suite.results-strange", file="runs")):
        run_suite(suite, folder / "other", today=TODAY)


def test_text_of_a_capture_has_no_markup_in_the_summary(make: Any, tmp_path: Path) -> None:
    from gdnbench.suite.markdown import to_markdown
    from gdnbench.suite.plan import Suite
    from gdnbench.suite.result import EntryResult
    from gdnbench.suite.verdict import judge_record

    hostile = "<script>alert(1)</script>|`x`\n# headline\x1b[31m"
    record = make.result(make.tensor("o", 1, 1, hostile), reason=hostile)
    verdict = judge_record(make.entry(), record, (), None, TODAY)
    suite = Suite(Path("suite.toml"), (make.entry(),))
    text = to_markdown(SuiteResult(suite, tmp_path, (EntryResult(make.entry(), (verdict,)),)))
    assert "\\<script\\>" in text
    assert "<script>" not in text
    assert "\x1b" not in text
    assert sum(line.startswith("# ") for line in text.splitlines()) == 1


def test_every_option_of_an_entry_is_in_the_command(make: Any) -> None:
    from gdnbench.suite.plan import TensorRule

    options = {
        "against": "recorded",
        "rule": TensorRule(tol=(1e-3, 0.5)),
        "tensors": {"o": TensorRule(bitwise=True), "lse": TensorRule(k=1.5)},
        "op": "gdn_decode",
        "check": True,
        "accept": Path("accept.toml"),
        "timeout": 60.0,
        "machine": "h200",
        "sms": 4,
    }
    assert " ".join(replay_words(make.entry(**options))) == (
        "gdnbench replay both.zarr --kernel torch --on cpu --against recorded --op gdn_decode --tol 0.001,0.5"
        " --rule o=bitwise --rule lse=k:1.5 --check --accept accept.toml --machine h200"
        " --sms 4 --timeout 60"
    )


@pytest.mark.slow
def test_workers_find_what_one_process_finds(suite_file: Write, folder: Path) -> None:
    pytest.importorskip("distributed")
    path = suite_file(TWO)
    run(path)
    alone = summary(folder)
    run(path, workers=2)
    spread = summary(folder)
    for document in (alone, spread):
        for entry in document["entries"]:
            del entry["seconds"]
        del document["process"]
    assert spread == alone


def test_a_scheduler_that_does_not_answer_is_asked_once(
    suite_file: Write, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def open_pool(*given: Any, **options: Any) -> Any:
        asked.append(given)
        raise CannotRunError("nobody answers")

    monkeypatch.setattr("gdnbench.workers.dask_pool.open_pool", open_pool)
    result = run(suite_file(TWO), scheduler="tcp://127.0.0.1:9")
    assert [entry.error for entry in result.entries] == ["nobody answers"] * 2
    assert result.exit_code is Exit.CANNOT_RUN
    assert len(asked) == 1


def test_what_a_kernel_says_is_told_once_and_does_nothing_to_the_terminal(
    suite_file: Write, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gdnbench.cli.suite import suite as command

    (folder / "rude.py").write_text('def decode(**call):\n    raise ValueError("\\x1b[2J" + chr(0))\n')
    path = suite_file('[[replay]]\ncaptures = "both.zarr"\nkernels = "rude.py:decode"\nisolate = false\n')
    with pytest.raises(typer.Exit):
        command(path, folder / "results")
    shown = capsys.readouterr().out
    assert "both.rude-py-decode.cpu records 0-1 (2): crash\n  ValueError: \\x00 (" in shown
    assert shown.count(": crash\n") == 1  # both records ended alike
    assert (folder / "results" / "summary.md").read_text().count(": crash\n") == 1
    assert not {"\x1b", "\0"} & set(shown)


def test_records_pick_among_those_that_an_entry_names(suite_file: Write, tmp_path: Path) -> None:
    """Record 1 of both.zarr alone is among its own; decode.zarr has but record 0 and is left out."""
    path = suite_file(
        """
        [[replay]]
        name = "own"
        captures = ["both.zarr"]
        kernels = ["torch"]
        records = [1]
        [[replay]]
        name = "short"
        captures = ["decode.zarr"]
        kernels = ["torch"]
        """
    )
    result = run_suite(read_suite(path), tmp_path / "results", today=TODAY, records=[range(2), range(3, 9)])
    assert [len(entry.verdicts) for entry in result.entries] == [1, 1]
    result = run_suite(read_suite(path), tmp_path / "more", today=TODAY, records=[range(1, 9)])
    assert [entry.entry.name.split(".")[0] for entry in result.entries] == ["own"]
    with pytest.raises(BadInputError, match=wording("suite.records-none")):
        run_suite(read_suite(path), tmp_path / "none", today=TODAY, records=[range(5, 9)])


def test_a_pattern_does_not_reach_the_runs_that_the_suite_left(suite_file: Write, tmp_path: Path) -> None:
    path = suite_file('[[replay]]\ncaptures = "**/*.zarr"\nkernels = "torch"\nop = "gdn_decode"\n')
    first, second = run(path), run(path)
    assert list(tmp_path.glob("results/runs/*.zarr"))
    assert [one.entry.name for one in second.entries] == [one.entry.name for one in first.entries]


MADE = """
[[record]]
name = "two"
op = "gdn_decode"
seed = 1
options = { batch = 2, heads = [1, 2], head_dim = [16, 16] }
[[record]]
name = "short"
op = "gdn_prefill"
seed = 2
options = { seqlens = [5], heads = [1, 2], head_dim = [16, 16] }
"""


def test_made_records_are_replayed(suite_file: Write, folder: Path, tmp_path: Path) -> None:
    (folder / "made.toml").write_text(MADE)
    suite = read_suite(suite_file('[[replay]]\nmade = "made.toml"\nkernels = "torch"\n'))
    result = run_suite(suite, tmp_path / "results", today=date(2026, 6, 1))
    assert result.exit_code == 0
    (entry,) = result.entries
    assert [verdict.record.layer for verdict in entry.verdicts] == ["two", "short"]
    told = result.command(entry.entry, 1).split()
    assert told[:2] == ["gdnbench", "suite"]
    assert told[-4:] == ["--entry", "made.torch.cpu", "--records", "1"]
    only = run_suite(suite, tmp_path / "results", today=date(2026, 6, 1), records=[range(1, 2)])
    assert [verdict.record.layer for verdict in only.entries[0].verdicts] == ["short"]
