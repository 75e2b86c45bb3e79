# SPDX-License-Identifier: Apache-2.0
"""How verdicts on mutants are stored, explained and counted."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gdnbench.errors import BadInputError
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.mutants import KeptLaunch, Tensor
from gdnbench.sim.ptx import parse
from tests.sim.mutation import judging, verdicts


@pytest.fixture
def result() -> Any:
    return verdicts.Result(
        "gemm", "0", "interpreter", "removed", "bar.sync", 9, "gemm.py:3", 1, "removed", "survivor"
    )


def entry(**changed: Any) -> str:
    fields = {
        "kernel": "gemm",
        "source": "gemm.py:3",
        "kind": "removed",
        "why": "Another follows.",
        **changed,
    }
    return "[[mutant]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())


def changed(result: Any, **fields: Any) -> Any:
    return type(result)(**{**asdict(result), **fields})


def known(tmp_path: Path, **changed: Any) -> Any:
    path = tmp_path / "equivalent.toml"
    path.write_text(entry(**changed))
    return verdicts.equivalents(path)


def test_a_stopped_run_goes_on(result: Any, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert list(verdicts.read(path)) == []
    verdicts.write(path, result)
    path.write_text(path.read_text() + json.dumps(asdict(result))[:20])
    assert list(verdicts.read(path)) == [result]
    verdicts.write(path, changed(result, kind="one later"))
    assert [each.kind for each in verdicts.read(path)] == ["removed", "one later"]


def test_what_was_judged_again(result: Any, tmp_path: Path) -> None:
    """By then the checker finds one; the kernel's text changes, and results of before no longer count."""
    path = tmp_path / "results.jsonl"
    other, killed = changed(result, kernel="gemm/1"), changed(result, outcome="checker")
    for one in (result, other, killed, changed(result, kernel="copy")):
        verdicts.write(path, one)
    assert verdicts.latest(path, ["gemm"]) == [killed, other]
    text = changed(killed, ptx="1")
    verdicts.write(path, text)
    assert verdicts.latest(path, ["gemm"]) == [other, text]


def launch(folder: str = "/a", bits: int = 32, grid: int = 1, sizes: tuple[int, ...] = (4, 8)) -> KeptLaunch:
    """Of a kernel without instructions but `ret`, its tensors in the order of their addresses."""
    header = ".version 8.8\n.target sm_100a\n.address_size 64\n"
    text = f'{header}.visible .entry k()\n{{\n.reg .b{bits} %r<1>;\nret;\n}}\n.file 1 "{folder}/k.py"\n'
    request = LaunchRequest(text, "k", (grid, 1, 1), (32, 1, 1), (1, 1, 1), 0, (), None, 0)
    return KeptLaunch(parse(text), request, tuple(Tensor(64, "x", bytes(size), None) for size in sizes))


def test_what_is_judged_is_the_same_in_every_process_and_checkout() -> None:
    same = [launch(), launch(folder="/b/c"), launch(sizes=(8, 4))]
    assert len({judging.digest([one]) for one in same}) == 1
    others = [launch(bits=64), launch(grid=2), launch(sizes=(4, 4))]
    assert len({judging.digest([one]) for one in (launch(), *others)}) == 4
    assert judging.digest([launch(), launch(grid=2)]) != judging.digest([launch()])


def test_what_a_reason_explains(result: Any, tmp_path: Path) -> None:
    others = [changed(result, **{name: "other"}) for name in ("kernel", "source", "kind")]
    reasons = known(tmp_path)
    assert verdicts.unexplained([result, *others], reasons) == others
    assert verdicts.unexplained([result], known(tmp_path, op="bar.*", kernel="g*")) == []
    assert verdicts.unexplained([result], known(tmp_path, op="fence")) == [result]
    (reason,) = reasons = known(tmp_path, kernel=["copy*", "gemm/*"])
    assert verdicts.unexplained([result, changed(result, kernel="gemm/1")], reasons) == [result]
    assert [reason.is_about(one) for one in ("gemm", "copy", "gem")] == [True, True, False]
    # Two instructions of one line, of which one is explained.
    assert verdicts.unexplained([result, result], known(tmp_path, most=1)) == [result]
    second = changed(result, nth=2)
    assert verdicts.unexplained([result, second], known(tmp_path, nth=[2, 3])) == [result]
    moved = changed(result, change="behind bar.sync at PTX line 9")
    reasons = known(tmp_path, change="behind bar.*")
    assert verdicts.unexplained([result, moved], reasons) == [result]
    later, flipped = changed(result, kind="one later"), changed(result, kind="parity flipped")
    reasons = known(tmp_path, kind=["removed", "one later"])
    assert verdicts.unexplained([result, later, flipped], reasons) == [flipped]
    # A mutant that is found needs no reason.
    assert [reasons[0].explains(one) for one in (later, changed(later, outcome="hang"))] == [True, False]


def test_what_is_no_reason(tmp_path: Path) -> None:
    for wrong in (
        {"why": " "},
        {"kind": "turned"},
        {"kind": ["removed", "turned"]},
        {"kind": []},
        {"because": "so"},
    ):
        with pytest.raises(BadInputError):
            known(tmp_path, **wrong)


def test_what_took_too_long_is_not_explained(result: Any, tmp_path: Path) -> None:
    late = changed(result, outcome="undecided")
    assert verdicts.unexplained([late], known(tmp_path)) == [late]


def test_the_rate_counts_what_was_to_be_found(result: Any, tmp_path: Path) -> None:
    """Two found, one left, one equivalent and one that the inputs do not reach: 2 of 3."""
    outcomes = ("checker", "hang", "survivor", "unreached")
    results = [changed(result, outcome=outcome) for outcome in outcomes]
    results.append(changed(result, source="gemm.py:4", outcome="survivor"))
    rows = verdicts.rows(results, known(tmp_path))
    assert [dict(zip(verdicts.TOLD, row, strict=True)) for row in rows][-1] == {
        "kernel": "gemm",
        "kind": "",
        "mutants": 5,
        "killed": "66.7%",
        "checker": 1,
        "review": 0,
        "numbers": 0,
        "fault": 0,
        "hang": 1,
        "survivor": 1,
        "equivalent": 1,
        "unreached": 1,
    }


def test_the_reasons_that_are_written() -> None:
    assert verdicts.equivalents()
