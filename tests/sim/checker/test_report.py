# SPDX-License-Identifier: Apache-2.0
"""The checker's findings as a user sees them: in a report, as text and as JSON.

The kernels are right as they are. Each test removes one line of PTX, so that the two accesses of the finding
are known from the kernel's source.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdnbench.sim.checker.evidence import Evidence
from gdnbench.sim.checker.happens_before import Verdict
from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.finding import Finding, Severity
from gdnbench.sim.report import Report
from gdnbench.sim.run import ENGINES, RunResult, run_ptx
from tests.messages import wording

each_engine = pytest.mark.parametrize("engine", ENGINES)

# Thread t of 64 hands its number to thread t - 32 or t + 32 through shared memory, where `buffer` comes
# first: at 1 KB, which the machine keeps for itself (CUDA Programming Guide, "Compute Capability 9.0").
EXCHANGE = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 data)
{
.reg .b32 %r<6>;
.reg .b64 %d<4>;
.shared .align 16 .b8 buffer[256];
ld.param.u64 %d0, [data];
mov.u32 %r0, %tid.x;
mov.u32 %r1, buffer;
shl.b32 %r2, %r0, 2;
add.s32 %r3, %r1, %r2;
st.shared.b32 [%r3], %r0;
bar.sync 0;
xor.b32 %r2, %r2, 128;
add.s32 %r3, %r1, %r2;
ld.shared.b32 %r4, [%r3];
mov.u32 %r5, %ctaid.x;
shl.b32 %r5, %r5, 8;
add.s32 %r2, %r2, %r5;
cvt.u64.u32 %d1, %r2;
add.s64 %d1, %d0, %d1;
st.global.b32 [%d1], %r4;
ret;
}
"""
BARRIER = "bar.sync 0;\n"
OFFSET = "shl.b32 %r5, %r5, 8;\n"  # of a CTA's part of the output

# Both warps' words are there before one of them races, so that nothing else is wrong.
FILLED = EXCHANGE.replace(BARRIER, f"{BARRIER}add.s32 %r0, %r0, 1;\nst.shared.b32 [%r3], %r0;\n{BARRIER}")
RACY = FILLED.replace(f"[%r3], %r0;\n{BARRIER}xor", "[%r3], %r0;\nxor")


def line_of(text: str, ptx: str, *, last: bool = False) -> int:
    found = [number for number, line in enumerate(text.splitlines(), 1) if line == ptx]
    return found[-1] if last else found[0]


def run(text: str, *, ctas: int = 1, words: int | None = None, **options: Any) -> RunResult:
    data = np.zeros(64 * ctas if words is None else words, np.int32)
    return run_ptx(text, "k", (ctas, 1, 1), (64, 1, 1), [data], check=True, **options)


@each_engine
def test_a_kernel_that_is_right(engine: str) -> None:
    assert run(EXCHANGE, ctas=3, engine=engine).found == ()
    assert run(FILLED, engine=engine).found == ()


def test_what_is_not_checked_says_nothing() -> None:
    data = np.zeros(64, np.int32)
    assert run_ptx(RACY, "k", (1, 1, 1), (64, 1, 1), [data]).found is None


@each_engine
def test_both_accesses_of_a_race(engine: str) -> None:
    """Warp 1, the last at the barrier, goes on first: it stores its words again, the upper half, and reads
    those of warp 0, which then does the same."""
    found = run(RACY, ctas=2, engine=engine).found
    assert found is not None
    store, load = "st.shared.b32 [%r3], %r0;", "ld.shared.b32 %r4, [%r3];"
    lines = line_of(RACY, store, last=True), line_of(RACY, load)
    by_order = {
        (one.first.place.line, one.second.place.line): one for one in found if one.first and one.second
    }
    assert by_order.keys() == {lines, lines[::-1]}
    one = by_order[lines]
    assert one.first is not None
    assert one.second is not None
    assert (one.verdict, one.cause, one.kernel) == (Verdict.ERROR, "race", "k")
    where = "shared memory at 0x480..0x4ff"  # the 32 words of a warp, which the other reads
    assert (one.memory, one.address, one.size, one.where) == ("shared", 1024 + 128, 128, where)
    assert (one.first.cta, one.first.warp, one.first.does) == ((0, 0, 0), 1, "st.shared.b32 writes")
    assert (one.second.cta, one.second.warp, one.second.does) == ((0, 0, 0), 0, "ld.shared.b32 reads")
    assert (one.first.place.text, one.second.place.text) == (store, load)
    assert (one.first.role, one.first.asynchronous) == ("compute", False)
    assert (one.ctas, one.warps) == (2, ((1, 0),))
    assert "barrier" in one.missing


def test_no_other_process_finds_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long CTAs take, they run in this process."""
    monkeypatch.setattr("gdnbench.sim.machine.grid.ALONE_SECONDS", 0.0)
    found = run(RACY, ctas=5, threads=2).found
    assert found is not None
    assert [one.ctas for one in found] == [5, 5]


def test_text_of_a_finding() -> None:
    found = run(RACY, ctas=2).found
    assert found is not None
    store, load = (
        line_of(RACY, "st.shared.b32 [%r3], %r0;", last=True),
        line_of(RACY, "ld.shared.b32 %r4, [%r3];"),
    )
    (one,) = [one for one in found if one.second is not None and one.second.place.line == load]
    where = "shared memory at 0x480..0x4ff"
    message = wording("sim.checker.without", where=where, missing=one.missing, section="")
    writes = wording(
        "sim.checker.access",
        earlier="",
        cta=(0, 0, 0),
        warp=1,
        role="compute",
        does="st.shared.b32 writes",
        late="",
        place=f"PTX line {store} `st.shared.b32 [%r3], %r0;`",
    )
    reads = wording(
        "sim.checker.access",
        earlier="",
        cta=(0, 0, 0),
        warp=0,
        role="compute",
        does="ld.shared.b32 reads",
        late="",
        place=f"PTX line {load} `ld.shared.b32 %r4, [%r3];`",
    )
    lines = [
        wording("sim.finding", severity="error", launch=4, kind="race", message=re.compile(message)),
        f"  first: {writes}",
        f"  second: {reads}",
        "  "
        + wording(
            "sim.checker.pairs", count=2, what="pairs", places="", ctas=2, plural="s", warps="warps 1 and 0"
        ),
    ]
    assert re.fullmatch("\n".join(lines), str(Finding.of_evidence(one, 4)))
    sides = f"st.shared.b32 at PTX line {store}, then ld.shared.b32 at PTX line {load}"
    assert one.summary == f"race: {sides}, without {one.missing}"


def test_accesses_of_two_ctas() -> None:
    found = run(EXCHANGE.replace(OFFSET, "mov.u32 %r5, 0;\n"), ctas=2).found
    assert found is not None
    (one,) = found
    assert one.first is not None
    assert one.second is not None
    assert (one.cause, one.where, one.ctas) == ("CTAs race", "global memory at data + 0x0", 2)
    assert {one.first.cta, one.second.cta} == {(0, 0, 0), (1, 0, 0)}
    assert one.first.place.text == one.second.place.text == "st.global.b32 [%d1], %r4;"


@each_engine
def test_ctas_that_add_to_the_same_words(engine: str) -> None:
    """An atomic and a store race, two atomics do not."""
    added = EXCHANGE.replace("st.global.b32", "red.global.add.u32").replace(OFFSET, "mov.u32 %r5, 0;\n")
    assert run(added, ctas=2, engine=engine).found == ()
    found = run(added.replace("ret;", "st.global.b32 [%d1], %r4;\nret;"), ctas=2, engine=engine).found
    assert found
    assert {one.cause for one in found} == {"CTAs race"}


@each_engine
def test_a_fault_keeps_what_was_found_before_it(engine: str) -> None:
    with pytest.raises(KernelFault) as stopped:
        run(RACY, words=32, engine=engine)
    assert stopped.value.kind is FaultKind.OUT_OF_BOUNDS
    assert stopped.value.found is not None
    assert {one.cause for one in stopped.value.found} == {"race"}


@each_engine
def test_a_deadlock_keeps_what_was_found_before_it(engine: str) -> None:
    with pytest.raises(KernelFault) as stopped:
        run(RACY.replace("ret;", "bar.sync 1, 96;\nret;"), engine=engine)
    assert stopped.value.kind is FaultKind.DEADLOCK
    assert stopped.value.found
    with pytest.raises(KernelFault) as unchecked:
        run_ptx(EXCHANGE, "k", (1, 1, 1), (64, 1, 1), [np.zeros(32, np.int32)])
    assert unchecked.value.found is None


def from_json(finding: Finding) -> Finding:
    return Finding.from_json(json.loads(json.dumps(finding.as_json())))


def test_findings_come_back_from_json() -> None:
    between = EXCHANGE.replace(OFFSET, "mov.u32 %r5, 0;\n")
    for text in (RACY, between):
        found = run(text, ctas=2).found
        assert found
        for finding in (Finding.of_evidence(one, 1) for one in found):
            accepted = replace(finding, accepted="for a reason")
            assert (from_json(finding), from_json(accepted)) == (finding, accepted)
    fault = Finding.of_fault(KernelFault(FaultKind.TRAP, "trap"), 0)
    assert from_json(fault) == fault


def test_a_review_names_the_section_that_leaves_it_open() -> None:
    one = Evidence(Verdict.REVIEW, "c", "k", "a fence", "PTX ISA 1.2", where="shared memory at 0x0")
    found = run(RACY).found
    assert found
    shown = replace(one, second=found[0].second)
    without = wording(
        "sim.checker.without",
        where="shared memory at 0x0",
        missing="a fence",
        section=" (PTX ISA 1.2)",
    )
    assert re.fullmatch(without, shown.message)
    assert replace(shown, missing="a fence (PTX ISA 1.2)").message == shown.message


# Kernels in CuTe DSL, by `sim.launch`.


def edited(monkeypatch: pytest.MonkeyPatch, kernel: Any, take_out: str) -> Any:
    """`kernel` without the first line of its PTX that begins so."""
    from gdnbench.sim.host import capture
    from gdnbench.sim.ptx.parser import parse

    host = capture._host(kernel)
    lines = host.exported.ptx.splitlines()
    at = next(number for number, line in enumerate(lines) if line.strip().startswith(take_out))
    lines[at] = ""
    monkeypatch.setitem(capture._loaded, kernel, replace(host, module=parse("\n".join(lines))))
    return kernel


def source_line(module: Any, text: str) -> str:
    lines = Path(module.__file__).read_text().splitlines()
    (line,) = [number for number, line in enumerate(lines, 1) if line.strip() == text]
    return f"{module.__file__}:{line}"


def at(finding: Finding) -> list[str]:
    assert finding.evidence is not None
    sides = (finding.evidence.first, finding.evidence.second)
    return [f"{side.place.file}:{side.place.file_line}" for side in sides if side is not None]


@pytest.fixture(scope="module")
def row_sums() -> Any:
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    import torch

    from tests.sim.kernels import simt
    from tests.sim.kernels.compiling import compiled, fake

    tensors = fake(torch.bfloat16, (None, None), align=2), fake(torch.float32, (None,), align=4)
    return compiled(simt.row_sums, *tensors)


@pytest.fixture(scope="module")
def tma_scale() -> Any:
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    import torch

    from tests.sim.kernels.compiling import compiled, fake
    from tests.sim.kernels.tma_copy import AtomKind, TmaScale

    tensors = [fake(torch.bfloat16, (None, None), divisible=8) for _ in range(2)]
    return compiled(TmaScale(AtomKind.K_SW128, AtomKind.K_SW128), *tensors)


def launched(kernel: Any, *arguments: Any, **options: Any) -> Report:
    from gdnbench import sim

    return sim.launch(kernel, *arguments, check=True, raises=False, **options)


def test_a_report_says_that_it_was_checked(row_sums: Any) -> None:
    import torch

    x, out = torch.ones(3, 300, dtype=torch.bfloat16), torch.zeros(3)
    report = launched(row_sums, x, out)
    assert (report.ok, report.checked, report.findings) == (True, True, ())
    assert report.launches[0].found == {}
    first, *_, last = str(report).splitlines()
    settings = wording(
        "sim.settings", engine="compiled", schedule="late", mma="hardware", checked=", checked"
    )
    assert re.fullmatch(settings, first)
    assert re.fullmatch(wording("sim.no-error"), last)
    assert report.as_json()["checked"] is True


def test_a_barrier_taken_out_of_a_kernel(row_sums: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python lines on both sides of `sync_threads`, of warp 0 and each of the others."""
    import torch

    from tests.sim.kernels import simt

    x, out = torch.ones(3, 300, dtype=torch.bfloat16), torch.zeros(3)
    report = launched(edited(monkeypatch, row_sums, "bar.sync"), x, out)
    assert not report.ok
    (raced,) = [finding for finding in report.findings if finding.kind == "race"]
    store, load = source_line(simt, "partial[warp] = value"), source_line(simt, "value = partial[lane]")
    assert sorted(at(raced)) == sorted([store, load])
    assert raced.severity is Severity.ERROR
    assert raced.evidence is not None
    assert (raced.evidence.ctas, {warp for pair in raced.evidence.warps for warp in pair}) == (
        3,
        {0, 1, 2, 3},
    )
    first = raced.evidence.address
    where = f"shared memory at {first:#x}..{first + raced.evidence.size - 1:#x}"
    assert f"error in launch 0: race: {where}, without" in str(report)
    assert report.launches[0].found == {"error": len(report.findings)}


def test_a_report_of_a_launch_that_was_stopped(row_sums: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of three CTAs stores past the end of two sums."""
    import torch

    from gdnbench import sim

    x, out = torch.ones(3, 300, dtype=torch.bfloat16), torch.zeros(2)
    broken = edited(monkeypatch, row_sums, "bar.sync")
    report = launched(broken, x, out)
    *before, last = report.findings
    assert (last.kind, last.evidence) == ("out-of-bounds access", None)
    assert "race" in {one.kind for one in before}
    assert report.launches[0].found == {"error": len(before)}
    with sim.active(check=True) as session, pytest.raises(KernelFault):
        sim.launch(broken, x, out)
    (kept,) = session.reports
    assert [one.kind for one in kept.findings] == [one.kind for one in report.findings]


def of_checker(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.evidence is not None]


def test_a_proxy_fence_taken_out_of_a_kernel(tma_scale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tests.sim.kernels import tma_copy

    x, out = torch.ones(64, 64, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.bfloat16)
    assert of_checker(launched(tma_scale, x, out)) == []
    report = launched(edited(monkeypatch, tma_scale, "fence.proxy.async"), x, out)
    found = of_checker(report)
    assert {finding.kind for finding in found} == {"no proxy fence"}
    one = found[0].evidence
    assert one is not None
    assert one.first is not None
    assert one.second is not None
    assert one.missing == "fence.proxy.async between the two"
    assert (one.first.asynchronous, one.second.asynchronous) == (False, True)
    assert one.first.place.text.startswith("st.shared.b16")
    assert one.second.place.text.startswith("cp.async.bulk.tensor.2d.global.shared")
    assert (one.second.warp, one.second.role) == (0, "TMA load + TMA store")
    wanted = "s_out[place] = (s_in[place].to(cutlass.Float32) * 2.0).to(self.dtype)"
    assert at(found[0])[0] == source_line(tma_copy, wanted)


def test_a_fence_of_an_initialisation_taken_out(tma_scale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ISA leaves open fails nothing."""
    import torch

    x, out = torch.ones(64, 64, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.bfloat16)
    report = launched(edited(monkeypatch, tma_scale, "fence.mbarrier_init"), x, out)
    (finding,) = of_checker(report)
    assert (report.ok, finding.severity) == (True, Severity.REVIEW)
    assert finding.evidence is not None
    assert finding.evidence.section == 'PTX ISA, "membar, fence"'
    assert str(report).splitlines()[-1] == "no error found, 1 to review"
