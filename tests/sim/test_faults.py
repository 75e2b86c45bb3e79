# SPDX-License-Identifier: Apache-2.0
"""Every illegal act stops the launch and says what, where in the PTX and where in Python; its twin runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gdnbench import sim
from gdnbench.errors import Exit, exit_code_of
from gdnbench.replay.failure import describe
from gdnbench.sim.errors import FaultKind, KernelFault, Place, UnsupportedError
from tests.messages import wording
from tests.sim import fault_cases
from tests.sim.fault_cases import (
    ALLOCATE,
    BARRIER,
    FREE,
    GLOBAL_BYTES,
    LOAD_TMEM,
    PAIRS,
    USES,
    WAIT_LOAD,
    Pair,
    product,
    ptx,
    used_early,
)
from tests.sim.kernels import faulty
from tests.sim.kernels.compiling import compiled, fake

ENGINES = ("interpreter", "compiled")
ONES = np.float32(1)


def run(text: str, engine: str, threads: int = 32, smem: int = 0, **settings: Any) -> np.ndarray[Any, Any]:
    """The global memory of the kernel `k` after it ran as one CTA."""
    data = np.full(GLOBAL_BYTES // 4, ONES)
    sim.run_ptx(text, "k", (1, 1, 1), (threads, 1, 1), [data], smem, engine=engine, **settings)
    return data


def unwaited(text: str, threads: int = 32) -> dict[Place, int]:
    """How often the interpreter notes at each place that a tcgen05.ld was not waited for."""
    data = np.full(GLOBAL_BYTES // 4, ONES)
    ran = sim.run_ptx(text, "k", (1, 1, 1), (threads, 1, 1), [data], engine="interpreter")
    notes = {
        note.place: count
        for note, count in ran.notes.items()
        if re.search(wording("sim.interpreter.register-before-wait"), note.message)
    }
    assert all("9.7.16.6.4.5" in note.message for note in ran.notes)
    return notes


def engines_of(pair: Pair) -> tuple[str, ...]:
    return ENGINES[:1] if pair.interpreter_only else ENGINES


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("pair", "engine"),
    [
        pytest.param(pair, engine, id=f"{pair.kind.name}-{pair.name}-{engine}")
        for pair in PAIRS
        for engine in engines_of(pair)
    ],
)
def test_ptx_fault_and_its_twin(pair: Pair, engine: str) -> None:
    bad, good = pair.texts()
    with pytest.raises(KernelFault) as caught:
        run(bad, engine, pair.threads)
    fault = caught.value
    assert fault.kind is pair.kind, fault
    assert exit_code_of(fault) == Exit.MISMATCH
    assert pair.says in fault.message, fault
    assert fault.place is not None
    line = bad.splitlines()[fault.place.line - 1]
    assert (pair.at or pair.bad.splitlines()[0]) in line, (line, str(fault))
    assert f"PTX line {fault.place.line}" in str(fault)
    run(good, engine, pair.threads)


@pytest.mark.parametrize("engine", ENGINES)
def test_deadlock_names_every_waiter(engine: str) -> None:
    """Two warps wait on two things: the message has both, with phase, counts and lines."""
    text = ptx(
        BARRIER
        + """
setp.ge.u32 %p4, %r0, 32;
@%p4 bra second;
again:
mbarrier.try_wait.parity.shared.b64 %p2, [barrier], 0;
@!%p2 bra again;
ret;
second:
bar.sync 3, 64;
"""
    )
    with pytest.raises(KernelFault) as caught:
        run(text, engine, threads=64)
    message = str(caught.value)
    lines = text.splitlines()
    for waiter, what in (("warp 0", "mbarrier.try_wait"), ("warp 1", "bar.sync 3")):
        line = next(number for number, line in enumerate(lines, 1) if what in line)
        (told,) = [text for text in message.splitlines() if waiter in text and "waits" in text]
        assert f"PTX line {line}" in told
    assert "parity 0" in message
    assert "1 of 1 arrivals" in message
    assert caught.value.kind is FaultKind.DEADLOCK
    first = message.splitlines()[0]
    stuck = wording("sim.machine.deadlock", waits="2 waits")
    assert re.match(rf"deadlock: {stuck} in CTA \(0, 0, 0\) at PTX line ", first)
    assert describe(caught.value) == "KernelFault: " + "; ".join(map(str.strip, message.splitlines()))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("settings", "directives", "says"),
    [
        ({"smem": 220 * 1024}, "", "shared memory"),
        ({"threads": 1056}, "", "1024"),
        ({"threads": 64}, ".reqntid 32, 1, 1", "reqntid"),
        ({"threads": 512, "registers": 160}, "", "registers"),
    ],
)
def test_launch_over_budget(settings: dict[str, int], directives: str, says: str, engine: str) -> None:
    with pytest.raises(KernelFault) as caught:
        run(ptx("", directives), engine, **settings)
    assert caught.value.kind is FaultKind.BUDGET
    assert says in caught.value.message


@pytest.mark.parametrize("engine", ENGINES)
def test_launch_at_budget(engine: str) -> None:
    """Twin of the above: one step below each limit (the texts have 9 KB of static shared memory)."""
    run(ptx("", ".reqntid 512, 1, 1"), engine, threads=512, smem=216 * 1024, registers=128)
    run(ptx(""), engine, threads=1024, registers=64)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("frobnicate.b32 %r1, %r0;", "frobnicate"),
        ("add.rz.s32 %r1, %r0, %r0;", "rz"),
        ("ld.global.L7::keep.f32 %f0, [%d0];", "L7::keep"),
        ("tcgen05.shift.cta_group::1.down [%r0];", "tcgen05.shift"),
        ("wgmma.mma_async.sp.sync.aligned;", "wgmma.mma_async.sp"),
        ("tcgen05.shift.cta_group::2.down [%r0];", "tcgen05.shift"),
        ("tcgen05.ld.sync.aligned.16x256b.x64.b32 {%r1, %r2}, [0];", "16x256b.x64"),
        ("tcgen05.st.sync.aligned.16x256b.x64.b32 [0], {%r0, %r0};", "16x256b.x64"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_unknown_instruction_or_modifier(line: str, says: str, engine: str) -> None:
    text = ptx(line)
    with pytest.raises(UnsupportedError) as caught:
        run(text, engine)
    assert says in caught.value.what
    assert caught.value.place is not None
    assert text.splitlines()[caught.value.place.line - 1] == line
    assert exit_code_of(caught.value) == Exit.CANNOT_RUN


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "line",
    [
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r4}, [%r2];",
        "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r0};",
    ],
)
def test_a_fragment_of_other_registers_than_the_opcode_says(line: str, engine: str) -> None:
    text = ptx(ALLOCATE + "@@\n" + FREE, line=line)
    with pytest.raises(UnsupportedError, match=wording("sim.machine.register-count", count=1)) as caught:
        run(text, engine)
    assert caught.value.place is not None
    assert text.splitlines()[caught.value.place.line - 1] == line


@pytest.mark.parametrize("engine", ENGINES)
def test_known_instructions_run(engine: str) -> None:
    """Twin of the above."""
    run(ptx("add.s32 %r1, %r0, %r0;\nld.global.L1::no_allocate.f32 %f0, [%d0];"), engine)


COPIED = """
mul.wide.u32 %d4, %r0, 4;
add.s64 %d4, %d0, %d4;
shl.b32 %r4, %r0, 2;
mov.u32 %r5, buffer;
add.s32 %r4, %r5, %r4;
st.shared.f32 [%r4], 0f00000000;
bar.sync 0;
"""
BULK_LOAD = """
@%p1 bra loaded;
mbarrier.arrive.expect_tx.shared.b64 _, [barrier], 128;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [buffer], [%d0], 128, [barrier];
loaded:
"""
OUT = """
ld.shared.f32 %f1, [%r4];
add.f32 %f1, %f1, %f1;
st.global.f32 [%d4+512], %f1;
"""
THREAD_COPY = "cp.async.ca.shared.global [%r4], [%d4], 4;\ncp.async.commit_group;\n"
STORE_SOURCE = COPIED + "st.shared.f32 [%r4], 0f40000000;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
STORE = """
setp.ne.u32 %p1, %r0, 0;
@%p1 bra stored;
cp.async.bulk.global.shared::cta.bulk_group [%d0+512], [buffer], 128;
cp.async.bulk.commit_group;
@@
stored:
bar.sync 0;
st.shared.f32 [%r4], 0f41000000;
@%p1 bra gone;
cp.async.bulk.wait_group 0;
gone:
"""
STORE_TMEM = "mov.b32 %r3, 0f40000000;\ntcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r3};\n"
TO_GLOBAL = "mul.wide.u32 %d4, %r0, 4;\nadd.s64 %d4, %d0, %d4;\nst.global.b32 [%d4+512], %r4;\n"

# Name, text with `@@` where the wait belongs, the wait. With it the 32 numbers from byte 512 on are 2.
MISSING_WAITS = {
    "bulk load": (COPIED + BARRIER + BULK_LOAD + "@@" + OUT + fault_cases.WAIT, fault_cases.WAIT),
    "cp.async": (COPIED + THREAD_COPY + "@@\n" + OUT, "cp.async.wait_group 0;"),
    "bulk store reads": (STORE_SOURCE + STORE, "cp.async.bulk.wait_group.read 0;"),
    "tcgen05.st": (
        ALLOCATE
        + STORE_TMEM
        + "@@\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}, [%r2];\ntcgen05.wait::ld.sync.aligned;\n"
        + TO_GLOBAL
        + "tcgen05.wait::st.sync.aligned;\n"
        + FREE,
        "tcgen05.wait::st.sync.aligned;",
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MISSING_WAITS)
def test_missing_wait_shows_in_the_numbers(name: str, engine: str) -> None:
    body, wait = MISSING_WAITS[name]
    bad = run(ptx(body), engine, schedule="late")[128:160]
    good = run(ptx(body, line=wait), engine, schedule="late")[128:160]
    assert (good == 2).all()
    assert not (bad == 2).any()


@pytest.mark.parametrize("engine", ENGINES)
def test_missing_wait_for_a_product_shows_in_the_numbers(engine: str) -> None:
    """Lanes 0 .. 15 and 16 .. 31 of warp 0: rows 0 .. 15 of D, and lanes that M 64 leaves alone."""
    right = run(ptx(product()), engine, schedule="late")[:16]
    assert (right == 16.0).all()
    # The wait moves behind the loads, so that the product does not outlive the CTA.
    late = product(wait="").replace(FREE, fault_cases.WAIT + FREE)
    assert not (run(ptx(late), engine, schedule="late")[:16] == 16.0).any()


STORE_LOADED = "mul.wide.u32 %d4, %r0, 8;\nadd.s64 %d4, %d0, %d4;\n"


@pytest.mark.parametrize("name", USES)
def test_use_of_a_loaded_register_before_the_wait(name: str) -> None:
    """The PTX ISA orders it (9.7.16.6.4.5): no fault, and a note of the interpreter's that names the use.
    Twin: the same text with the wait at its place."""
    body = used_early(name)
    text = ptx(body)
    (note,) = unwaited(text)
    assert text.splitlines()[note.line - 1].startswith(USES[name][1])
    assert not unwaited(ptx(body, line=WAIT_LOAD))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "moves",
    [
        "mov.b64 %d5, {%r4, %r5};",
        "mov.b32 %r6, %r4;\nmov.b32 %r7, %r5;\nmov.b64 %d5, {%r6, %r7};",
        "mov.b64 %d6, {%r5, %r4};\nmov.b64 {%r7, %r6}, %d6;\nmov.b64 %d5, {%r6, %r7};",
        "mov.b32 {%h0, %h1}, %r4;\nmov.b32 %r6, {%h0, %h1};\nmov.b64 %d5, {%r6, %r5};",
        "setp.eq.u32 %p4, %r0, 40;\nselp.b32 %r6, 0, %r4, %p4;\nmov.b64 %d5, {%r6, %r5};",
        "prmt.b32 %r6, %r4, %r5, 0x3276;\nprmt.b32 %r7, %r4, %r5, 0x1054;\n"
        "prmt.b32 %r5, %r7, %r6, 0x5410;\nmov.b64 %d5, {%r4, %r5};",
    ],
)
def test_compilers_move_loaded_registers_above_the_wait(moves: str, engine: str) -> None:
    """No fault, and the numbers are there after the wait."""
    fill = "add.s32 %r3, %r0, 100;\ntcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r0, %r3};\n"
    fill += "tcgen05.wait::st.sync.aligned;\n"
    after = STORE_LOADED + "st.global.b64 [%d4], %d5;\n" + FREE
    data = run(ptx(ALLOCATE + fill + LOAD_TMEM + moves + "\n" + WAIT_LOAD + "\n" + after), engine)
    lanes = np.arange(32)
    expected = np.stack([lanes, lanes + 100], axis=1)
    assert np.array_equal(data.view(np.uint32)[:64].reshape(32, 2), expected)


def test_a_loaded_register_that_is_written_again() -> None:
    """The new value is there at once, also in some lanes; the others have the load's."""
    fill = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r0, %r0};\ntcgen05.wait::st.sync.aligned;\n"
    body = ALLOCATE + fill + LOAD_TMEM + "@@\n" + WAIT_LOAD + "\n" + FREE
    lower = "setp.lt.u32 %p4, %r0, 16;\n@%p4 mov.b32 %r4, 7;\n"
    assert not unwaited(ptx(body, line="mov.b32 %r4, 7;\nneg.s32 %r6, %r4;"))
    assert not unwaited(ptx(body, line=lower + "@%p4 neg.s32 %r6, %r4;"))
    assert len(unwaited(ptx(body, line=lower + "neg.s32 %r6, %r4;"))) == 1


def test_a_wait_is_the_warps_own() -> None:
    """Warp 1 waits for its load before the barrier; warp 0, which does so after it, uses it before."""
    text = ptx(
        "mov.u32 %r1, columns;\nsetp.ge.u32 %p1, %r0, 32;\n@%p1 bra allocated;\n"
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;\nallocated:\nbar.sync 0;\n"
        "ld.shared.b32 %r2, [columns];\ntcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r0, %r0};\n"
        "tcgen05.wait::st.sync.aligned;\n" + LOAD_TMEM + "@!%p1 bra late;\n" + WAIT_LOAD + "\nlate:\n"
        "bar.sync 0;\nneg.s32 %r6, %r4;\n@%p1 bra done;\n" + WAIT_LOAD + FREE + "\ndone:"
    )
    ((_, count),) = unwaited(text, threads=64).items()
    assert count == 1  # the other warp has waited
    assert not unwaited(text.replace("@!%p1 bra late;\n", ""), threads=64)


def line_of(marked: str, name: str) -> int:
    """The line of `faulty.py` marked in the class `name`."""
    lines = Path(faulty.__file__).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"class {name}("))
    return next(number for number, line in enumerate(lines, 1) if number > start and line.endswith(marked))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("name", "kind", "engine"),
    [
        ("OutOfBounds", FaultKind.OUT_OF_BOUNDS, "compiled"),
        ("OutOfBounds", FaultKind.OUT_OF_BOUNDS, "interpreter"),
        ("Deadlock", FaultKind.DEADLOCK, "compiled"),
        ("Uninitialised", FaultKind.UNINITIALISED, "interpreter"),
        ("TmemLeak", FaultKind.TMEM_LEAK, "compiled"),
        ("Divergence", FaultKind.DIVERGENCE, "compiled"),
        ("Divergence", FaultKind.DIVERGENCE, "interpreter"),
    ],
)
def test_cute_fault_names_the_python_line(name: str, kind: FaultKind, engine: str) -> None:
    size = 100 if kind is FaultKind.OUT_OF_BOUNDS else faulty.THREADS
    x = torch.arange(size, dtype=torch.float32)
    fakes = [fake(torch.float32, (None,), align=4) for _ in range(2)]
    y = torch.full_like(x, torch.nan)
    with pytest.raises(KernelFault) as caught:
        sim.launch(compiled(getattr(faulty, name)(True), *fakes), x, y, engine=engine)
    place = caught.value.place
    assert caught.value.kind is kind, caught.value
    assert place is not None
    assert place.file is not None
    assert Path(place.file) == Path(faulty.__file__)
    assert place.file_line == line_of("# here", name)
    assert f"faulty.py:{place.file_line}" in str(caught.value)

    y = torch.full_like(x, torch.nan)
    sim.launch(compiled(getattr(faulty, name)(False), *fakes), x, y, engine=engine)
    assert torch.equal(y, x.flip(0) if name == "Uninitialised" else x)


@pytest.mark.parametrize("engine", ENGINES)
def test_cute_missing_wait(engine: str) -> None:
    x = torch.arange(1.0, 4097.0).view(faulty.TILE)
    right, wrong = torch.zeros_like(x), torch.zeros_like(x)
    fakes = [fake(torch.float32, faulty.TILE) for _ in range(2)]
    sim.launch(compiled(faulty.MissingWait(False), *fakes), x, right, engine=engine)
    assert torch.equal(right, x)
    broken = compiled(faulty.MissingWait(True), *fakes)
    if engine == "interpreter":
        # It sees that nothing was ever written there.
        with pytest.raises(KernelFault) as caught:
            sim.launch(broken, x, wrong, engine=engine)
        assert caught.value.kind is FaultKind.UNINITIALISED
    else:
        sim.launch(broken, x, wrong, engine=engine)
        assert not (wrong == x).any()
