# SPDX-License-Identifier: Apache-2.0
"""scripts/prove_kda.py: which kernels it names, what its table counts, and that it goes on from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.report.outcome import Outcome
from scripts import prove_kda
from tests.kernels.prove_all import HEADS, Records, Subject, Verdict, row, subjects


def test_every_kernel_is_named_once() -> None:
    for cuda in (False, True):
        named = [(one.op, one.kernel) for one in subjects(prove_kda.OPS, cuda)]
        listed = {(op, kernel) for op in prove_kda.OPS for kernel in operation(op).kernels}
        assert len(named) == len(set(named))
        assert set(named) == listed
    devices = {str(one): one.on for one in subjects(prove_kda.OPS, False)}
    assert devices["kda_prefill sm100_fused sim"] == "sim"
    assert devices["kda_prefill hf cpu"] == "cpu"


def test_records_are_the_cases_and_the_captures(tmp_path: Path) -> None:
    with Records(tmp_path, ("kda_prefill",), ("length 17", "length 65", "K 64", "capture*"), True) as records:
        names = [name for _, _, name in records.of("kda_prefill")]
    # length 65 is not among the quick cases, and what compiled kernels refuse is not asked of any.
    assert names == ["length 17", *(f"capture kda_prefill {number}" for number in range(3))]


def verdict(record: str, outcome: Outcome, ratio: float = 0.0, reason: str = "") -> Verdict:
    return Verdict("kda_prefill fla sim", record, outcome, reason, ratio, 2.0)


def test_a_row_counts_by_outcome() -> None:
    verdicts = [
        verdict("length 1", Outcome.PASS, 1.25),
        verdict("length 2", Outcome.PASS, 1.5),
        verdict("capture kda_prefill 0", Outcome.PASS, 0.5),
        verdict("length 3", Outcome.UNSUPPORTED, reason="no tokens"),
        verdict("length 4", Outcome.MISMATCH, 9.0, "o: RMS"),
        verdict("length 5", Outcome.CRASH, reason="IndexError"),
        verdict("length 6", Outcome.MISSING, reason="no package"),
    ]
    found = dict(zip(HEADS, row("kda_prefill fla sim", verdicts), strict=True))
    counts = [found[name] for name in ("made", "shipped", "mismatch", "unsupported", "not run")]
    assert counts == [2, 1, 2, 1, 1]
    assert (found["of torch's"], found["seconds"], found["first"]) == ("1.50", "14", "length 4: o: RMS")


def test_packages_are_those_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDNBENCH_THIRD_PARTY", "/packages")
    monkeypatch.delenv("GDNBENCH_VLLM", raising=False)
    found = {
        one: Subject("kda_prefill", one, "sim").packages() for one in ("fla", "flashinfer", "vllm", "hf")
    }
    assert found == {
        "fla": Path("/packages/with-triton"),
        "flashinfer": Path("/packages"),
        "vllm": None,
        "hf": None,
    }
    assert Subject("kda_prefill", "fla", "cuda").packages() is None


def test_what_is_kept_is_not_replayed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.jsonl"
    words = ["prove_kda.py", "kda_decode torch cpu", "--records", "capture kda_decode 0"]
    monkeypatch.setattr("sys.argv", [*words, "--results", str(results)])
    assert prove_kda.main() is Exit.PASS
    first = capsys.readouterr()
    assert "1 verdicts, 0 failed" in first.out
    kept = results.read_text()
    assert prove_kda.main() is Exit.PASS
    assert capsys.readouterr() == (first.out, "")
    assert results.read_text() == kept
    results.write_text(kept.replace('"pass"', '"numeric mismatch"'))
    assert prove_kda.main() is Exit.MISMATCH


def test_a_name_of_no_kernel_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["prove_kda.py", "gdn_prefill*"])
    assert prove_kda.main() is Exit.BAD_INPUT
    assert "no kernel is called gdn_prefill*" in capsys.readouterr().err
