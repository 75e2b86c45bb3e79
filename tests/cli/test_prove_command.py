# SPDX-License-Identifier: Apache-2.0
"""`gdnbench prove`: what it prints, its exit status, and how it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdnbench.cli.prove import print_refusals
from gdnbench.prove.result import Check, Proof, Section
from gdnbench.report.outcome import Outcome
from tests.messages import wording
from tests.prove.samples import replace_made, write_captures

Invoke = Callable[..., Any]  # the fixture `gdnbench`

KERNELS = Path(__file__).parents[1] / "prove" / "kernels.py"


@pytest.fixture
def prove(gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """`prove(kernel, *options)` with small records, in this process."""
    replace_made(tmp_path, monkeypatch)
    captures = write_captures(tmp_path / "captures")

    def invoke(kernel: str, *options: object) -> Any:
        name = f"{KERNELS}:{kernel}"
        op = () if "--op" in options else ("--op", "gdn_prefill")
        return gdnbench("prove", name, *op, "--captures", captures, "--no-isolate", *options)

    return invoke


def test_a_right_kernel(prove: Invoke) -> None:
    found = prove("prefill")
    assert found.code == 0, found.out
    lines = found.out.splitlines()
    assert lines[0].split()[:4] == ["section", "check", "runs", "pass"]
    assert re.match(r"captures\s+served\s+1\s+1\s+0\s+0\s", lines[1])
    assert re.match(r"poison\s.*\son$", next(line for line in lines if line.startswith("poison")))
    number, what = re.compile(r"\d+"), re.compile(".*:prefill on cpu, gdn_prefill")
    assert re.fullmatch(
        wording("prove.summary", checks=number, runs=number, outcome="all pass", what=what, seed=0), lines[-1]
    )
    assert [line for line in found.err.splitlines() if line.startswith("gdnbench: ")] == [
        "gdnbench: captures",
        "gdnbench: made",
        "gdnbench: laws",
        "gdnbench: repeat",
    ]


def test_a_wrong_kernel_names_section_law_record_and_place(prove: Invoke) -> None:
    found = prove("leaks_later_tokens", "--only", "laws")
    assert found.code == 1
    assert re.search(r"^laws +causality .* FAIL$", found.out, re.M)
    assert "numeric mismatch: laws, causality: lengths, tokens from" in found.out
    assert re.search(r"^  o of sequence 0: \d+ of \d+ elements differ, first \[", found.out, re.M)
    assert "failed, in laws |" in found.out


def test_the_most_frequent_reasons_of_what_could_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = ["no fp16", "no chunks of 32", "no drafts", "no fp16", "no padding"]
    checks = [
        Check(Section.MADE, "made records", str(number), Outcome.UNSUPPORTED, (reason,))
        for number, reason in enumerate(reasons)
    ]
    print_refusals(Proof("mine", "gdn_prefill", "sim", 0, tuple(checks)))
    first, *_, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(wording("prove.refused-checks", reason="no fp16", count=2, plural="s"), first)
    assert re.fullmatch(wording("prove.refused-more", count=1), last)


def test_json(prove: Invoke) -> None:
    found = prove("takes_no_float16", "--only", "made", "--json", "--seed", "3")
    assert found.code == 0
    told = json.loads(found.out)
    assert (told["command"], told["schema"], told["exit_code"], told["seed"]) == ("prove", 1, 0, 3)
    assert [check["outcome"] for check in told["checks"]] == ["pass", "unsupported"]
    assert {"section", "check", "subject", "outcome", "reasons", "ratio", "runs", "seconds"} == set(
        told["checks"][0]
    )


def test_an_interrupt_prints_what_was_done(prove: Invoke) -> None:
    found = prove("interrupts_the_third_call", "--only", "made,captures,laws")
    assert found.code == 130
    assert re.search(r"^captures +served +1 +1 ", found.out, re.M)
    assert "interrupted; " in found.out


def test_wrong_arguments_are_one_line(prove: Invoke, gdnbench: Invoke) -> None:
    found = prove("prefill", "--only", "made,speed")
    assert found.code == 2
    assert re.search(wording("prove.section-unknown", name="speed"), found.err)
    found = prove("prefill", "--op", "gdn_scan")
    assert found.code == 2
    assert "gdn_scan" in found.err
    assert gdnbench("prove", "torch", "--op", "gdn_prefill", "--on", "sim").code == 3
    assert gdnbench("prove", "nonsense", "--op", "gdn_prefill").code == 2


@pytest.mark.parametrize("seconds", ["nan", "0", "-1", "inf", "1e300"])
def test_a_timeout_that_is_no_time_to_wait_is_refused(gdnbench: Invoke, seconds: str) -> None:
    for command in (("prove", "torch", "--op", "gdn_prefill"), ("time", "STORE", "--kernel", "torch")):
        result = gdnbench(*command, "--timeout", seconds)
        assert result.code == 2
        assert "--timeout is" in result.err
