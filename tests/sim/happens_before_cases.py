# SPDX-License-Identifier: Apache-2.0
"""Small kernels that are right with all of their lines and wrong without a marked one, and the findings that
the checker must have in them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gdnbench.sim.checker.findings import FindingGroup
from gdnbench.sim.checker.grid import LaunchChecker
from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import run_ptx

HEADER = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 g)
{
.reg .pred %p, %q, %w0, %w1, %one, %second;
.reg .b32 %t, %w, %s, %c, %r<16>;
.reg .b64 %g, %a, %d<4>;
.reg .f32 %f<4>;
.shared .align 1024 .b8 buffer[2048];
.shared .align 8 .b64 full;
.shared .align 8 .b64 empty;
.shared .align 8 .b64 other;
ld.param.u64 %g, [g];
mov.u32 %t, %tid.x;
shr.u32 %w, %t, 5;
setp.eq.u32 %w0, %w, 0;
setp.eq.u32 %w1, %w, 1;
setp.eq.u32 %one, %t, 0;
setp.eq.u32 %second, %t, 32;
and.b32 %r0, %t, 31;
shl.b32 %r0, %r0, 2;
mov.u32 %s, buffer;
add.s32 %c, %s, %r0;
@%w0 st.shared.b32 [%c], %t;
fence.proxy.async;
bar.sync 15;
"""
"""The buffer is filled. Warp 1 comes last to the barrier and goes on first."""


@dataclass(frozen=True)
class Case:
    """`body` is right. Without the line that ends in `// -`, `found` is all there is: (cause, letters of the
    two accesses, the first empty if there is one alone)."""

    body: str
    found: frozenset[tuple[Cause | str, str, str]]
    verdicts: frozenset[Verdict] = frozenset({Verdict.ERROR})
    ctas: int = 1
    threads: int = 64


def wait(barrier: str, phase: int, label: str, mark: str = "") -> str:
    return (
        f"{label}: mbarrier.try_wait.parity.shared.b64 %p, [{barrier}], {phase};{mark}\n@!%p bra {label};\n"
    )


READY = """@%one mbarrier.init.shared.b64 [full], 1;
@%one mbarrier.init.shared.b64 [empty], 1;
@%one fence.mbarrier_init.release.cluster;
bar.sync 0;
"""

COPY = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%g], 128, [full];"
STORE = "cp.async.bulk.global.shared::cta.bulk_group [%g], [%s], 128;"
FILL = "st.shared.b32 [%c], %t;"
TAKE = "ld.shared.b32 %r1, [%c];"

UNINITIALISED = frozenset({("uninitialised read", "", "b")})


def check(
    body: str, engine: str, ctas: int = 1, schedule: str = "late", threads: int = 64
) -> list[FindingGroup]:
    """What is found in the kernel."""
    text = f"{HEADER}{body}\nret;\n}}\n"
    checker = LaunchChecker(parse(text).kernels["k"])
    memory = np.zeros(1024, np.uint32)
    run_ptx(
        text,
        "k",
        (ctas, 1, 1),
        (threads, 1, 1),
        [memory],
        engine=engine,
        schedule=schedule,
        threads=1,
        checker=checker.begin,
    )
    return checker.found()


def check_right(case: Case, engine: str) -> None:
    """Nothing is found, under any schedule."""
    for schedule in ("late", "early", "random:3"):
        assert check(case.body, engine, case.ctas, schedule, case.threads) == []


def check_wrong(case: Case, engine: str) -> None:
    """What the case says is found, and nothing else."""
    body = without_marked(case.body)
    lines = dict(enumerate(f"{HEADER}{body}".splitlines(), 1))

    def letter(number: int | None) -> str:
        return lines[number].partition("//")[2].strip() if number is not None else ""

    found = check(body, engine, case.ctas, threads=case.threads)
    pairs = {
        (one.cause, letter(one.first.place.line if one.first else None), letter(one.second.place.line))
        for one in found
    }
    # Which of two that nothing orders came first is the schedule's.
    assert {(cause, *sorted(pair)) for cause, *pair in pairs} == case.found
    assert {one.verdict for one in found} == case.verdicts


def without_marked(body: str) -> str:
    """The lines that end in `// -` taken out; of a wait, its loop."""
    assert "// -" in body
    body = re.sub(r"^(\w+): [^\n]*// -\n@!%p bra \1;\n", "", body, flags=re.MULTILINE)
    return "".join(line for line in body.splitlines(keepends=True) if not line.rstrip().endswith("// -"))
