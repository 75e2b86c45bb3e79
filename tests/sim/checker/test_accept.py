# SPDX-License-Identifier: Apache-2.0
"""Accept files: which findings an entry accepts, and which entries are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gdnbench.errors import Exit, exit_code_of
from gdnbench.sim.checker.accept import Accepted, acceptance_template
from gdnbench.sim.checker.evidence import Access, Evidence
from gdnbench.sim.checker.happens_before import Verdict
from gdnbench.sim.errors import FaultKind, InputError, KernelFault, Place
from gdnbench.sim.finding import Finding, Severity
from tests.messages import wording


def access(warp: int, line: int, ptx: str, source: str | None) -> Access:
    file, _, number = (source or "").partition(":")
    place = Place(line, ptx, file or None, int(number) if number else None)
    return Access("does", False, (0, 0, 0), warp, "compute", place)


STORE = access(0, 14, "st.shared.b32 [%r3], %r0;", "/a/gemm.py:12")
LOAD = access(1, 18, "@%p1 ld.shared.b32 %r4, [%r3];", "/a/gemm.py:20")

RACE = Evidence(Verdict.ERROR, "race", "gemm_bf16_0", "a barrier", first=STORE, second=LOAD, where="x")
ALONE = Evidence(Verdict.ERROR, "uninitialised read", "scan_0", "a write", second=LOAD, where="x")
REVIEW = Evidence(Verdict.REVIEW, "no tcgen05 fence", "gemm_bf16_0", "it", first=LOAD, second=LOAD)
INCOMPLETE = Evidence(Verdict.INCOMPLETE, "not judged", "scan_0", "CTAs that talk")
ALL = {"race": RACE, "alone": ALONE, "review": REVIEW, "incomplete": INCOMPLETE}


def findings() -> list[Finding]:
    return [Finding.of_evidence(evidence, 0) for evidence in ALL.values()]


def written(path: Path, text: str) -> Path:
    file = path / "accepted.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("entry", "fits"),
    [
        ('cause = "race"', ["race"]),
        ('kernel = "gemm_*"', ["race", "review"]),
        ('kernel = "*_0"', ["race", "alone", "review", "incomplete"]),
        ('kernel = "gemm"', []),
        ('kernel = "gemm_bf16_."', []),
        ('source = "gemm.py:12"', ["race"]),
        ('source = "mm.py:12"', []),
        ('source = "/a/gemm.py:20"', ["race", "alone", "review"]),
        ('source = ["gemm.py:20", "gemm.py:12"]', ["race"]),
        ('source = ["gemm.py:20", "gemm.py:20"]', ["review"]),
        ('ptx = "st.shared.b32 [%r3], %r0;"', ["race"]),
        ('ptx = "st.shared.b32  *"', ["race"]),
        ('ptx = "*ld.shared*"', ["race", "alone", "review"]),
        ('ptx = "ld.shared*"', []),
        ('cause = "race"\nsource = "gemm.py:13"', []),
        ('cause = "not judged"', ["incomplete"]),
    ],
)
def test_what_an_entry_fits(tmp_path: Path, entry: str, fits: list[str]) -> None:
    accepted = Accepted.read(written(tmp_path, f'[[accept]]\n{entry}\nreason = "so it is"'))
    found = dict(zip(ALL, accepted.apply(findings()), strict=True))
    assert [name for name, finding in found.items() if finding.accepted == "so it is"] == fits
    assert [name for name, finding in found.items() if finding.accepted is None] == [
        name for name in ALL if name not in fits
    ]
    assert [finding.fails for finding in found.values()] == [
        name not in fits for name in ("race", "alone")
    ] + [False, False]
    assert len(accepted.unused()) == (not fits)


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("*", True),
        ("st.shared.b32*%r6;", True),
        ("st.*.b32*", True),
        ("*.b32 *", True),
        ("st.shared.b32 [%r3], %r6;*", True),
        ("st.shared.b32 [%r3], %r6;;", False),
        ("st.shared.b32 [%r3], %r6;*;", False),  # its one semicolon does not count twice
        ("st.?hared*", False),
        ("*b32*shared*", False),
        ("*" * 30 + "*".join("shared.b3") + "*!", False),  # and says so at once
    ],
)
def test_a_star_stands_for_any_text(tmp_path: Path, pattern: str, fits: bool) -> None:
    store = access(0, 3, "st.shared.b32 [%r3], %r6;", None)
    found = Finding.of_evidence(
        Evidence(Verdict.ERROR, "race", "k", "a barrier", first=None, second=store), 0
    )
    accepted = Accepted.read(written(tmp_path, f"[[accept]]\nptx = '{pattern}'\nreason = 'r'"))
    assert (accepted.apply([found])[0].accepted == "r") is fits


def test_faults_and_notes_are_not_accepted(tmp_path: Path) -> None:
    accepted = Accepted.read(written(tmp_path, '[[accept]]\nkernel = "*"\nreason = "all"'))
    fault = Finding.of_fault(KernelFault(FaultKind.TRAP, "trap", STORE.place), 0)
    note = Finding(Severity.NOTE, "note", "race", 0)
    assert accepted.apply([fault, note]) == (fault, note)


def test_entries_that_fit_nothing_are_told(tmp_path: Path) -> None:
    """One that fits what an earlier one has accepted is not in vain."""
    text = '[[accept]]\ncause = "race"\nreason = "1"\n'
    text += '[[accept]]\ncause = "race"\nkernel = "gemm*"\nreason = "2"\n'
    text += '[[accept]]\ncause = "race"\nsource = ["a.py:1", "b.py:2"]\nreason = "3"\n'
    file = written(tmp_path, text)
    accepted = Accepted.read(file)
    race, *_ = accepted.apply(findings())
    assert race.accepted == "1"
    (unused,) = accepted.unused()
    entry = "cause 'race', source 'a.py:1' and 'b.py:2'"
    assert re.fullmatch(wording("sim.checker.accept-unused", path=file, number=3, entry=entry), unused)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[accept]]\ncause = "race"', wording("sim.checker.entry-reason-missing", where="entry 1")),
        (
            '[[accept]]\ncause = "race"\nreason = "  "',
            wording("sim.checker.entry-reason-missing", where="entry 1"),
        ),
        (
            '[[accept]]\ncause = "x"\nreason = "y"\n[[accept]]\ncause = "race"',
            wording("sim.checker.entry-reason-missing", where="entry 2"),
        ),
        *(
            (f'[[accept]]\ncause = "x"\ncount = {count}\nreason = "y"', wording("sim.checker.entry-count"))
            for count in ("0", "true", '"1"')
        ),
        ('[[accept]]\ncount = 1\nreason = "all"', wording("sim.checker.entry-too-wide", where="entry 1")),
        ('[[accept]]\nreason = "all"', wording("sim.checker.entry-too-wide", where="entry 1")),
        (
            '[[accept]]\nline = "3"\nreason = "y"',
            wording(
                "sim.checker.entry-key-unknown", where="entry 1", key="line", known="reason, cause, kernel,"
            ),
        ),
        (
            '[[accept]]\ncause = 3\nreason = "y"',
            wording("sim.checker.entry-text", where="entry 1", key="cause"),
        ),
        (
            '[[accept]]\nreason = 3\ncause = "y"',
            wording("sim.checker.entry-text", where="entry 1", key="reason"),
        ),
        (
            '[[accept]]\nsource = ["a", "b", "c"]\nreason = "y"',
            wording("sim.checker.entry-text", key="source", or_list=", or a list of two"),
        ),
        (
            '[[accept]]\nsource = []\nreason = "y"',
            wording("sim.checker.entry-text", key="source", or_list=", or a list of two"),
        ),
        (
            '[[accept]]\nptx = [1]\nreason = "y"',
            wording("sim.checker.entry-text", key="ptx", or_list=", or a list of two"),
        ),
        ('[accept]\ncause = "race"\nreason = "y"', wording("sim.checker.accept-tables", table="accept")),
        ("accept = [1]", wording("sim.checker.entry-not-table", where="entry 1")),
        ('[[accepted]]\ncause = "race"\nreason = "y"', wording("sim.checker.accept-tables", table="accept")),
        ("[[accept", wording("suite.not-toml")),
        (None, wording("file.unreadable", reason="No such file")),
    ],
)
def test_what_is_no_file_of_entries(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "none.toml" if text is None else written(tmp_path, text)
    with pytest.raises(InputError) as refused:
        Accepted.read(file)
    assert f"--accept {file}" in str(refused.value)
    assert re.search(message, str(refused.value))
    assert "\n" not in str(refused.value)
    assert exit_code_of(refused.value) is Exit.BAD_INPUT


def test_a_file_made_of_findings_wants_reasons(tmp_path: Path) -> None:
    places = (
        access(0, 14, 'st.shared.b32 [%r3], "\\x";', None),
        access(1, 2, "ld.shared.b32 %r1, [%r3];", None),
    )
    no_source = Evidence(Verdict.ERROR, "race", "k", "a barrier", first=places[0], second=places[1])
    found = [*findings(), Finding.of_evidence(no_source, 3)]
    file = written(tmp_path, acceptance_template(found))
    with pytest.raises(InputError, match=wording("sim.checker.entry-reason-missing", where="entry 1")):
        Accepted.read(file)
    file = written(tmp_path, acceptance_template(found).replace('reason = ""', 'reason = "seen"'))
    accepted = Accepted.read(file)
    after = accepted.apply(found)
    assert [finding.severity for finding in after if finding.accepted is None] == [Severity.INCOMPLETE]
    assert accepted.unused() == []
    assert acceptance_template(after) == ""


def test_an_entry_by_the_text_of_lines_counts_pairs_of_lines(tmp_path: Path) -> None:
    source = tmp_path / "gemm.py"
    source.write_text("s[i] = x\n  y = s[i]\nz = 0\ns[i]  =  x\n")
    load = access(1, 18, LOAD.place.text, f"{source}:2")

    def race(line: int, ptx: int) -> Finding:
        store = access(0, ptx, STORE.place.text, f"{source}:{line}")
        return Finding.of_evidence(Evidence(Verdict.ERROR, "race", "k", "b", first=store, second=load), 0)

    entry = 'text = ["y = s[i]", "s[i] = x"]\nreason = "r"\n'
    found = [race(1, 14), race(4, 40), race(3, 30), race(1, 15)]  # the last: line 1 once more, unrolled
    for count, accepted in (("", [True, True, False, True]), ("count = 1", [True, False, False, True])):
        some = Accepted.read(written(tmp_path, f"[[accept]]\n{entry}{count}"))
        for _ in range(2):  # each call is counted anew
            assert [one.accepted == "r" for one in some.apply(found)] == accepted
    source.unlink()
    assert [one.accepted for one in some.apply(found)] == [None] * 4
