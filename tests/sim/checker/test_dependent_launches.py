# SPDX-License-Identifier: Apache-2.0
"""The checker over launches with programmatic stream serialisation: what may still run when a launch starts,
and what orders accesses after it.

Expectations are those of the PTX ISA, "griddepcontrol", and of the CUDA programming guide, "Programmatic
Dependent Launch and Synchronization"."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from gdnbench import sim
from gdnbench.sim.checker.evidence import Evidence
from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import run_ptx

ENGINES = ("interpreter", "compiled")
CTAS, THREADS = 3, 64

HEADER = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry {name}(.param .u64 x, .param .u64 y)
{{
.reg .pred %p;
.reg .b32 %t, %r<8>;
.reg .b64 %x, %y, %d<4>;
.reg .b16 %c;
.shared .align 8 .b64 bar;
mov.u32 %t, %tid.x;
mov.u32 %r0, %ctaid.x;
mad.lo.u32 %r0, %r0, 64, %t;
ld.param.u64 %x, [x];
ld.param.u64 %y, [y];
mad.wide.u32 %x, %r0, 4, %x;
mad.wide.u32 %y, %r0, 4, %y;
setp.lt.u32 %p, %t, 32;
{body}
ret;
}}
"""
WAIT, DEPENDENTS = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"
FILL = "st.global.b32 [%x], %t;"
COPY = "ld.global.b32 %r1, [%x];\nst.global.b32 [%y], %r1;"
ADD = "red.relaxed.gpu.global.add.u32 [%x], 1;"
OTHER = "st.global.b32 [%y], %t;"


@dataclass(frozen=True)
class Chain:
    """The bodies of launches of one stream, all but the first with programmatic stream serialisation, and the
    verdicts about the last: empty if it is right."""

    bodies: tuple[str, ...]
    found: tuple[Verdict, ...] = ()


ERROR, REVIEW = Verdict.ERROR, Verdict.REVIEW
CHAINS = {
    "reads after its wait": Chain((FILL + DEPENDENTS, WAIT + COPY)),
    "reads before its wait": Chain((DEPENDENTS + FILL, COPY + WAIT), (ERROR,)),
    "reads before, and the launch in front ends before": Chain((FILL, COPY + WAIT), (REVIEW,)),
    "writes what the launch in front reads": Chain((DEPENDENTS + COPY, FILL + WAIT), (ERROR,)),
    "reads what the launch in front reads": Chain((DEPENDENTS + COPY, "ld.global.b32 %r1, [%x];" + WAIT)),
    "other memory before its wait": Chain((DEPENDENTS + FILL, OTHER + WAIT)),
    "one warp waits and a barrier tells the other": Chain(
        (DEPENDENTS + FILL, f"@%p {WAIT}bar.sync 0;{COPY}")
    ),
    "one warp waits and the other does not": Chain(
        (DEPENDENTS + FILL, f"bar.sync 0;@%p {WAIT}{COPY}"), (ERROR,)
    ),
    # Morally strong accesses do not race ("Data Races"), whichever launch they are of.
    "atomics on what the launch in front counts in": Chain((DEPENDENTS + ADD, ADD + WAIT)),
    "atomics of a scope without the launch in front": Chain(
        (DEPENDENTS + ADD, ADD.replace("gpu", "cluster") + WAIT), (ERROR,)
    ),
    "reads what the launch in front counts": Chain(
        (DEPENDENTS + ADD, "ld.global.b32 %r1, [%x];" + WAIT), (ERROR,)
    ),
    "bytes of words": Chain((DEPENDENTS + FILL, "mov.b16 %c, 1;st.global.b8 [%x+1], %c;" + WAIT), (ERROR,)),
    # The second copies nothing of the first; it lets the third start at once, while the first may still run.
    "the launch before the last, which nobody waits for": Chain(
        (DEPENDENTS + FILL, DEPENDENTS + OTHER, WAIT + "ld.global.b32 %r1, [%x];"), (ERROR,)
    ),
    "the launch before the last, which the one between waits for": Chain(
        (DEPENDENTS + FILL, DEPENDENTS + OTHER + WAIT, WAIT + "ld.global.b32 %r1, [%x];")
    ),
    "the launch before the last, before any wait": Chain(
        (DEPENDENTS + FILL, DEPENDENTS + OTHER + WAIT, "ld.global.b32 %r1, [%x];" + WAIT), (ERROR,)
    ),
    "the launch between waits before it lets the last start": Chain(
        (DEPENDENTS + FILL, WAIT + DEPENDENTS + OTHER, "ld.global.b32 %r1, [%x];" + WAIT)
    ),
}


def found(chain: Chain, engine: str, ctas: int = CTAS) -> tuple[Evidence, ...]:
    x, y = (np.zeros(ctas * THREADS, np.uint32) for _ in range(2))
    earlier, evidence = None, ()
    for number, body in enumerate(chain.bodies):
        text = HEADER.format(name=f"k{number}", body=body.replace(";", ";\n"))
        done = run_ptx(
            parse(text),
            f"k{number}",
            (ctas, 1, 1),
            (THREADS, 1, 1),
            [x, y],
            engine=engine,
            check=True,
            earlier=earlier,
        )
        earlier, evidence = done.in_front, done.found or ()
    return evidence


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CHAINS)
def test_verdicts(name: str, engine: str) -> None:
    chain = CHAINS[name]
    evidence = found(chain, engine)
    assert {one.verdict for one in evidence} == set(chain.found)
    assert {one.cause for one in evidence} <= {Cause.LAUNCHES.value}


def test_both_kernels_are_named() -> None:
    (one,) = found(CHAINS["reads before its wait"], "compiled")
    assert one.kernel == "k1"
    assert one.first is not None
    assert one.second is not None
    assert (one.first.kernel, one.second.kernel) == ("k0", "")
    assert one.first.cta == one.second.cta == (0, 0, 0)
    assert "st.global.b32" in one.first.place.text
    assert "ld.global.b32" in one.second.place.text
    assert "griddepcontrol.wait" in one.missing


@pytest.mark.slow
def test_launches_of_several_processes() -> None:
    """More CTAs than one process takes."""
    for name in ("reads before its wait", "reads after its wait"):
        chain = CHAINS[name]
        assert {one.verdict for one in found(chain, "compiled", 600)} == set(chain.found)


@pytest.mark.parametrize(
    ("early", "waits", "races"), [(True, True, False), (True, False, True), (False, False, False)]
)
def test_launches_of_one_call_of_a_cute_function(early: bool, waits: bool, races: bool) -> None:
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    from tests.sim.kernels import dependent
    from tests.sim.kernels.compiling import compiled, fake

    x, y = (torch.zeros(dependent.THREADS) for _ in range(2))
    fakes = [fake(torch.float32, (None,), align=4) for _ in range(2)]
    kernel = compiled(dependent.FillAndDouble(early, waits), *fakes)
    report = sim.launch(kernel, x, y, check=True)
    assert torch.equal(y, 2.0 * torch.arange(dependent.THREADS))
    found = [one.evidence for one in report.findings if one.kind == Cause.LAUNCHES.value]
    assert bool(found) is races
    for evidence in found:
        assert evidence is not None
        for side, mark in ((evidence.first, "# written"), (evidence.second, "# read")):
            assert side is not None
            assert side.place.file == dependent.__file__
            lines = Path(dependent.__file__).read_text().splitlines()
            assert lines[(side.place.file_line or 0) - 1].endswith(mark)
