# SPDX-License-Identifier: Apache-2.0
"""Findings in groups: one for each cause and pair of source lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gdnbench.sim.checker.evidence import Access, Evidence
from gdnbench.sim.checker.happens_before import Verdict
from gdnbench.sim.errors import FaultKind, KernelFault, Place
from gdnbench.sim.finding import Finding, Severity
from gdnbench.sim.finding_groups import group_findings, lines_by_cause, short_opcode, text_of_groups

WRITES = "tcgen05.st.sync.aligned.32x32b.x1.b32 writes"
READS = "tcgen05.ld.sync.aligned.32x32b.x1.b32 reads"


def access(does: str, line: int, source: int | None, file: str = "/k.py", role: str = "MMA") -> Access:
    place = Place(line, does, None if source is None else file, source)
    return Access(does, True, (0, 0, 0), 1, role, place)


def finding(
    first: Access | None, second: Access, launch: int = 0, cause: str = "race", count: int = 1
) -> Finding:
    evidence = Evidence(
        Verdict.ERROR, cause, "gemm", "a barrier", memory="tmem", where="tensor memory at lane 0, column 4",
        first=first, second=second, count=count, ctas=2,
    )  # fmt: skip
    return Finding.of_evidence(evidence, launch)


def test_instances_of_an_unrolled_loop_are_one_group() -> None:
    found = [finding(access(WRITES, line, 10), access(READS, 100 + line, 20), count=3) for line in range(32)]
    (group,) = group_findings(found)
    assert str(group).split("\n") == [
        "error in launch 0: race: tensor memory, without a barrier",
        "  first:  /k.py:10: tcgen05.st writes, asynchronously (MMA)",
        "  second: /k.py:20: tcgen05.ld reads, asynchronously (MMA);"
        " 96 pairs in 2 CTAs, of 32 pairs of instructions",
    ]


def test_launches_reads_and_writes_are_named_together() -> None:
    pair = access(WRITES, 1, 10), access(READS, 2, 20)
    other = access(READS.replace("reads", "writes"), 3, 20, role="epilogue")
    (group,) = group_findings([finding(*pair), finding(*pair, launch=2), finding(pair[0], other, launch=1)])
    head, _, second = str(group).split("\n")
    assert head.startswith("error in launches 0, 1, 2: race")
    assert "/k.py:20: tcgen05.ld reads or writes, asynchronously (MMA, epilogue); 3 pairs" in second


def test_many_launches_are_counted() -> None:
    pair = access(WRITES, 1, 10), access(READS, 2, 20)
    (group,) = group_findings([finding(*pair, launch=number) for number in range(9)])
    assert str(group).startswith("error in launches 0, 1, 2, 3, 4, 5 and 3 more: race")


@pytest.mark.parametrize(
    "other",
    [
        finding(access(WRITES, 1, 11), access(READS, 2, 20)),
        finding(access(WRITES, 1, 10, file="/l.py"), access(READS, 2, 20)),
        finding(access(WRITES, 1, 10), access(READS, 2, 20), cause="no wait"),
        finding(None, access(READS, 2, 20)),
        replace(finding(access(WRITES, 1, 10), access(READS, 2, 20)), accepted="it is right"),
        replace(finding(access(WRITES, 1, 10), access(READS, 2, 20)), of="good"),
    ],
    ids=["line", "file", "cause", "one access", "accepted", "of another kernel"],
)
def test_others_are_a_group_of_their_own(other: Finding) -> None:
    one = finding(access(WRITES, 1, 10), access(READS, 2, 20))
    assert [group.findings for group in group_findings([one, other, one])] == [(one, one), (other,)]


def test_without_source_lines_instructions_are_kept_apart() -> None:
    one, other = (finding(access(WRITES, line, None), access(READS, 9, None)) for line in (1, 2))
    first, second = group_findings([one, other, one])
    assert (len(first.findings), len(second.findings)) == (2, 1)
    assert "PTX line 1 `tcgen05.st" in str(first)


def test_a_single_finding_keeps_its_address() -> None:
    (group,) = group_findings([finding(None, access(READS, 2, 20))])
    assert str(group).split("\n") == [
        "error in launch 0: race: tensor memory at lane 0, column 4, without a barrier",
        "  access: /k.py:20: tcgen05.ld reads, asynchronously (MMA); 1 access in 2 CTAs",
    ]


def test_a_fault_is_said_as_it_is() -> None:
    fault = Finding.of_fault(
        KernelFault(FaultKind.MISALIGNED, "address 3", place=Place(4, "ld.b32", "/k.py", 7)), 0
    )
    (group,) = group_findings([fault])
    assert str(group) == str(fault)


def test_sources_in_the_current_folder_are_relative(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (group,) = group_findings([finding(None, access(READS, 2, 20, file=str(tmp_path / "a" / "k.py")))])
    assert "access: a/k.py:20: " in str(group)


def test_many_pairs_of_lines_fit_a_screen() -> None:
    """50 lines of 3 x 160 columns, whatever the names of files and roles."""
    name = "/" + "n" * 10_000 + ".py"
    found = [finding(access(WRITES, 1, 10), access(READS, 2, line, name, name)) for line in range(10_000)]
    review = replace(finding(access(WRITES, 1, 9), access(READS, 2, 20)), severity=Severity.REVIEW)
    shown = "\n".join(text_of_groups([review, *found])).split("\n")
    assert len(shown) <= 50
    assert max(map(len, shown)) <= 3 * 160
    assert "review" not in "\n".join(shown[:-1])
    assert shown[-1] == (
        "9,985 more pairs of source lines and causes (9,984 error, 1 review); --verbose lists every finding"
    )
    assert len(text_of_groups(found[:16])) == 16


def test_a_line_for_each_cause() -> None:
    found = [finding(access(WRITES, 1, line), access(READS, 2, 20)) for line in (10, 11, 12)]
    found.append(finding(None, access(READS, 2, 20), cause="no wait"))
    assert lines_by_cause(group_findings(found)) == [
        "error: race: /k.py:10, then /k.py:20, without a barrier; 2 more of this cause",
        "error: no wait: /k.py:20, without a barrier",
    ]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (WRITES, "tcgen05.st"),
        ("ld.shared.v4.b32 reads", "ld.shared"),
        ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 reads", "ldmatrix"),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier reads", "cp.async.bulk.tensor"),
        ("tcgen05.mma.cta_group::1.kind::f16 writes", "tcgen05.mma"),
        ("atom.global.add.f32 writes", "atom.global.add"),
    ],
)
def test_opcodes_without_variants(text: str, short: str) -> None:
    assert short_opcode(text) == short
