# SPDX-License-Identifier: Apache-2.0
"""Mutants of hand-written PTX, whose texts are written out here, and the outcome of each; a sample of mutants
of real kernels."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.mutants.generate import mutants
from gdnbench.sim.mutants.judge import Judge, Outcome, _limit, _OverTimeError
from gdnbench.sim.mutants.launches import KeptLaunch, Tensor
from gdnbench.sim.mutants.mutant import Kind, Mutant
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import ENGINES
from tests.seeds import drawn, fresh

SCRIPT = Path(__file__).parents[3] / "scripts" / "mutate_synchronisation.py"
THREADS = 64


def text(body: str, target: str = "sm_100a") -> str:
    return f""".version 8.8
.target {target}
.address_size 64
.visible .entry k(.param .b64 out)
{{
.reg .pred %p<4>;
.reg .b32 %r<8>;
.reg .b64 %rd<8>;
.shared .align 16 .b8 s[1024];
{body}
}}
"""


def made(body: str, target: str = "sm_100a") -> list[tuple[str, str, list[str]]]:
    """(kind, what was changed, the lines that are not as they were) of each mutant of `body`."""
    whole = text(body, target)
    lines = whole.split("\n")
    found = []
    for mutant in mutants(parse(whole), "k"):
        mutated = mutant.ptx(whole)
        parse(mutated)
        others = mutated.split("\n")
        assert len(others) == len(lines)  # findings tell by line
        changed = [new.strip() for new, old in zip(others, lines, strict=True) if new != old]
        found.append((mutant.kind.value, mutant.change, changed))
    return found


def test_counts_of_barriers() -> None:
    assert made("bar.sync 1, 64;\nret;") == [
        ("removed", "removed", [""]),
        ("count more", "96 instead of 64", ["bar.sync 1, 96;"]),
        ("count less", "32 instead of 64", ["bar.sync 1, 32;"]),
    ]
    # For all threads: there is no count to change.
    assert made("bar.sync 0;\nret;") == [("removed", "removed", [""])]
    # The result of a reduction would be none: it is not removed.
    assert [kind for kind, _, _ in made("bar.red.popc.u32 %r1, 0, 64, %p1;\nret;")] == [
        "count more",
        "count less",
    ]


def test_counts_in_registers() -> None:
    """A register has a copy changed, for others may read it too."""
    more = "{ .reg .b32 %mutant; add.s32 %mutant, %r1, 1; mbarrier.init.shared.b64 [s], %mutant; }"
    less = "{ .reg .b32 %mutant; add.s32 %mutant, %r1, -1; mbarrier.init.shared.b64 [s], %mutant; }"
    assert made("mbarrier.init.shared.b64 [s], %r1;\nret;") == [
        ("count more", "%r1 +1", [more]),
        ("count less", "%r1 -1", [less]),
    ]


def test_arrivals() -> None:
    assert made("@%p1 mbarrier.arrive.shared::cta.b64 _, [s];\nret;") == [
        ("removed", "removed", [""]),
        ("count more", "2 instead of 1", ["@%p1 mbarrier.arrive.shared::cta.b64 _, [s], 2;"]),
        (
            "weakened",
            "mbarrier.arrive.relaxed.cta.shared::cta.b64",
            ["@%p1 mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [s];"],
        ),
    ]
    expects = "mbarrier.arrive.expect_tx.release.cta.shared.b64 %rd1, [s+8], 128;"
    weaker = expects.replace("release", "relaxed")
    assert made(f"{expects}\nret;")[1:] == [
        ("count more", "129 instead of 128", [expects.replace("128", "129")]),
        ("count less", "127 instead of 128", [expects.replace("128", "127")]),
        ("weakened", "mbarrier.arrive.expect_tx.relaxed.cta.shared.b64", [weaker]),
    ]


# As NVVM writes a wait.
LOOP = """{ .reg .pred P1;
LAB_WAIT:
mbarrier.try_wait.parity.shared.b64 P1, [s], %r1, 10000000;
@P1 bra.uni DONE;
bra.uni LAB_WAIT;
DONE: }
ld.shared.b32 %r2, [s+64];
ret;"""


def test_waits() -> None:
    wait = "mbarrier.try_wait.parity.shared.b64 P1, [s], %r1, 10000000;"
    other = "mbarrier.try_wait.parity.shared.b64 P1, [s], %mutant, 10000000;"
    moved = (
        "{ .reg .pred %mutant; MUTANT: mbarrier.try_wait.parity.shared.b64 %mutant, [s], %r1, 10000000;"
        " @!%mutant bra MUTANT; }"
    )
    passed = "setp.eq.u32 P1, 0, 0;"
    assert made(LOOP) == [
        ("removed", "never waits", [passed]),
        ("parity flipped", "%r1 ^ 1", [f"{{ .reg .b32 %mutant; xor.b32 %mutant, %r1, 1; {other} }}"]),
        (
            "weakened",
            "mbarrier.try_wait.parity.relaxed.cta.shared.b64",
            [wait.replace("parity", "parity.relaxed.cta")],
        ),
        (
            "one later",
            "behind ld.shared.b32 at PTX line 16",
            [passed, f"ld.shared.b32 %r2, [s+64]; {moved}"],
        ),
    ]


def test_what_looks_once_is_not_moved() -> None:
    """Its result is data: there is no loop that waits."""
    look = "mbarrier.try_wait.parity.shared.b64 %p1, [s], 0;\n"
    body = f"{look}selp.b32 %r1, 1, 0, %p1;\nst.shared.b32 [s+64], %r1;\nret;"
    assert [kind for kind, _, _ in made(body)] == ["removed", "parity flipped", "weakened"]


def test_fences() -> None:
    assert made("fence.proxy.async;\nret;") == [
        ("removed", "removed", [""]),
        ("weakened", "fence.proxy.async.global", ["fence.proxy.async.global;"]),
        ("weakened", "fence.proxy.async.shared::cta", ["fence.proxy.async.shared::cta;"]),
    ]
    assert made("fence.proxy.async.shared::cta;\nret;") == [
        ("removed", "removed", [""]),
        ("weakened", "fence.proxy.async.global", ["fence.proxy.async.global;"]),
    ]
    assert made("fence.acq_rel.gpu;\nret;")[1:] == [("weakened", "fence.acq_rel.cta", ["fence.acq_rel.cta;"])]
    # A fence of proxies passes the store: its effect is on what is released or copied after it.
    later = made("fence.proxy.async;\nst.shared.b32 [s], %r1;\nbar.sync 0;\nret;")[3]
    assert later == (
        "one later",
        "behind bar.sync at PTX line 12",
        ["", "bar.sync 0; fence.proxy.async;"],
    )


def test_groups() -> None:
    assert made("cp.async.bulk.wait_group 0;\nst.shared.b32 [s], %r1;\nret;") == [
        ("removed", "removed", [""]),
        ("count more", "1 instead of 0", ["cp.async.bulk.wait_group 1;"]),
        ("weakened", "cp.async.bulk.wait_group.read", ["cp.async.bulk.wait_group.read 0;"]),
        (
            "one later",
            "behind st.shared.b32 at PTX line 11",
            ["", "st.shared.b32 [s], %r1; cp.async.bulk.wait_group 0;"],
        ),
    ]
    assert [kind for kind, _, _ in made("wgmma.wait_group.sync.aligned 1;\nret;", "sm_90a")] == [
        "removed",
        "count more",
    ]


def test_accesses_with_an_order() -> None:
    assert made("ld.global.acquire.gpu.b32 %r1, [%rd1];\nret;") == [
        ("weakened", "ld.global.relaxed.gpu.b32", ["ld.global.relaxed.gpu.b32 %r1, [%rd1];"])
    ]
    assert made("st.shared.b32 [s], %r1;\natom.shared.add.u32 %r1, [s], 1;\nret;") == []


def test_what_a_branch_may_skip_is_passed_as_a_whole() -> None:
    body = "bar.sync 0;\n@%p1 bra SKIP;\nst.shared.b32 [s], %r1;\nSKIP: add.s32 %r1, %r1, 1;\nret;"
    assert made(body)[1] == (
        "one later",
        "before add.s32 at PTX line 13",
        ["", "SKIP:  bar.sync 0; add.s32 %r1, %r1, 1;"],
    )
    # Nothing in it counts.
    body = "bar.sync 0;\n@%p1 bra SKIP;\nadd.s32 %r1, %r1, 2;\nSKIP: st.shared.b32 [s], %r1;\nret;"
    assert made(body)[1][1] == "behind st.shared.b32 at PTX line 13"


@pytest.mark.parametrize(
    "body",
    [
        "@%p1 bra SKIP;\nbar.sync 0;\nSKIP: st.shared.b32 [s], %r1;\nret;",  # others come in there
        "bar.sync %r1;\nadd.s32 %r1, %r1, 1;\nst.shared.b32 [s], %r2;\nret;",  # another barrier by then
        "bar.sync 0;\nadd.s32 %r1, %r1, 1;\nret;",  # nothing comes after it
        "bar.sync 0;\nbar.sync 0;\nret;",  # the same program
    ],
)
def test_where_nothing_can_be_moved(body: str) -> None:
    assert "one later" not in [kind for kind, _, _ in made(body)]


def test_several_statements_on_a_line() -> None:
    """Comments are no text, and an opcode that begins like another is another."""
    body = "mov.b32 %r1, 1; /* bar.sync 0; */ bar.sync 0; bar.sync 1, 64; // bar.sync 2;\nret;"
    found = made(body)
    rest = "mov.b32 %r1, 1; /* bar.sync 0; */ {}{} // bar.sync 2;"
    assert found[0][2] == [rest.format("", " bar.sync 1, 64;")]
    assert found[2][2] == [rest.format("bar.sync 0; ", "")]


# Two warps hand words to each other: each stores its own, and loads the other's behind barrier 1.
EXCHANGE = """
mov.u32 %r1, %tid.x;
ld.param.b64 %rd1, [out];
mov.b64 %rd2, s;
mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd4, %rd2, %rd3;
st.shared.b32 [%rd4], %r1;
bar.sync 1, 64;
xor.b32 %r2, %r1, 32;
mul.wide.u32 %rd5, %r2, 4;
add.s64 %rd6, %rd2, %rd5;
ld.shared.b32 %r3, [%rd6];
add.s64 %rd7, %rd1, %rd3;
st.global.b32 [%rd7], %r3;
ret;"""


def judged(
    body: str, engine: str = "interpreter", seconds: float | None = None
) -> list[tuple[Mutant, Outcome]]:
    """What becomes of each mutant of `body`, run by two warps; the checker is content with itself."""
    module = parse(text(body))
    out = np.zeros(THREADS, np.int32)
    request = LaunchRequest(
        ptx=module.text,
        entry="k",
        grid=(1, 1, 1),
        block=(THREADS, 1, 1),
        cluster=(1, 1, 1),
        shared_bytes=0,
        params=(int(out.ctypes.data).to_bytes(8, "little"),),
        registers=None,
        stream=0,
    )
    tensor = Tensor(int(out.ctypes.data), "out", out.tobytes(), out)
    judge = Judge(KeptLaunch(module, request, (tensor,)), engine, seconds=seconds)
    assert {own.found.total() for own in judge.own.values()} == {0}
    return [(mutant, judge.judge(mutant).outcome) for mutant in mutants(module, "k")]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_checker_finds(engine: str) -> None:
    """A barrier for one warp lets each go on alone."""
    found = {mutant.kind: outcome for mutant, outcome in judged(EXCHANGE, engine)}
    assert found == {
        Kind.REMOVED: Outcome.ERROR,
        Kind.MORE: Outcome.HANG,
        Kind.LESS: Outcome.ERROR,
        Kind.LATER: Outcome.ERROR,
    }


def test_a_barrier_too_many() -> None:
    twice = EXCHANGE.replace("bar.sync 1", "bar.sync 0; bar.sync 1")
    removed = [outcome for mutant, outcome in judged(twice) if mutant.kind is Kind.REMOVED]
    assert removed == [Outcome.SURVIVOR, Outcome.SURVIVOR]


def test_what_is_not_executed() -> None:
    skipped = "setp.eq.u32 %p1, 0, 0;\n@%p1 bra ON;\nbar.sync 1, 64;\nON: ret;"
    assert {outcome for _, outcome in judged(skipped)} == {Outcome.UNREACHED}


def test_other_bits() -> None:
    """Relaxed accesses race without being at fault: what they read is what tells."""
    relaxed = EXCHANGE.replace("st.shared", "st.relaxed.cta.shared").replace(
        "ld.shared", "ld.relaxed.cta.shared"
    )
    first = "st.shared.b32 [%rd4], 99;\nbar.sync 0;\nst.relaxed"
    found = judged(relaxed.replace("st.relaxed", first, 1))
    removed = [outcome for mutant, outcome in found if mutant.kind is Kind.REMOVED]
    # Each thread sets its own word first, so that the barrier in between is one too many.
    assert removed == [Outcome.SURVIVOR, Outcome.NUMBERS]


def test_a_loop_without_end() -> None:
    """Warp 1 clears a flag, warp 0 sets it behind the barrier, warp 1 waits for it by looking. Without the
    barrier it is cleared last. A count of what is executed says so, and no clock, unless there is no time."""
    flag = """
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 32;
@!%p1 st.relaxed.cta.shared.b32 [s], 0;
bar.sync 1, 64;
@%p1 st.relaxed.cta.shared.b32 [s], 1;
@%p1 bra END;
AGAIN: ld.relaxed.cta.shared.b32 %r2, [s];
setp.eq.u32 %p2, %r2, 0;
@%p2 bra AGAIN;
END: ret;"""
    found = {mutant.kind: outcome for mutant, outcome in judged(flag)}
    assert found[Kind.REMOVED] is Outcome.HANG
    found = {mutant.kind: outcome for mutant, outcome in judged(flag, seconds=0.001)}
    assert found[Kind.REMOVED] is Outcome.UNDECIDED


# Kernels whose mutants are judged in a second or less each; those of all kernels take hours.
QUICK = (
    *("gemm", "persistent", "tma_stream", "tmem_operand", "ldmatrix", "wgmma"),
    *("cluster_stream", "cluster_reduction", "launch_control"),
)
SAMPLE = 2


@pytest.mark.parametrize("seed", [0, fresh(drawn("mutants"))])
def test_a_sample(seed: int) -> None:
    """Of real kernels: TMA, products, mbarriers in rings, warps with roles. Fresh seeds choose
    other kernels and mutants; the command that failed says which."""
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    kernel = random.Random(seed).choice(QUICK)
    options = [kernel, "--sample", str(SAMPLE), "--seed", str(seed), "--processes", "1"]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)
    assert done.returncode == 0, f"{SCRIPT.name} {' '.join(options)}\n{done.stdout}{done.stderr}"
    assert f"{SAMPLE} mutants, 0 neither found nor explained" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_every_mutant_of_clusters(engine: str) -> None:
    options = ["cluster_*", "launch_control", "--engine", engine]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "106 mutants, 0 neither found nor explained" in done.stdout


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_time_that_runs_out_inside_a_destructor_is_not_lost() -> None:
    """Python drops an exception there; it was once taken for a hang."""

    class Slow:
        def __del__(self) -> None:
            begin = time.process_time()
            while time.process_time() < begin + 0.1:
                pass

    def use() -> None:
        with _limit(0.02):
            Slow()

    with pytest.raises(_OverTimeError):
        use()
