# SPDX-License-Identifier: Apache-2.0
"""Launches of real PTX: parameters, budgets, independent and communicating CTAs, faults with their place."""

from __future__ import annotations

import re
import struct
from itertools import product

import numpy as np
import pytest
import torch

from gdnbench.sim.errors import FaultKind, InputError, KernelFault, LaunchError
from gdnbench.sim.machine.grid import ctas_communicate, resident_ctas
from gdnbench.sim.run import RunResult, run_ptx
from tests.messages import wording
from tests.sim.machine.tma_model import Map

ENGINES = ("interpreter", "compiled")
SCHEDULES = ("early", "late", "random:1", "random:2")


def module(body: str, params: str, *, name: str = "k", directives: str = "", before: str = "") -> str:
    return f""".version 8.8
.target sm_100a
.address_size 64
{before}
.visible .entry {name}({params}) {directives}
{{
    .reg .pred %p<8>;
    .reg .b32 %r<32>;
    .reg .b64 %rd<16>;
{body}
}}
"""


INDEX = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %rd3, %r4, 4;
"""
ADD_ONE = module(
    f"""
    ld.param.b64 %rd1, [x];
    {INDEX}
    add.s64 %rd1, %rd1, %rd3;
    ld.global.b32 %r5, [%rd1];
    add.s32 %r5, %r5, 1;
    st.global.b32 [%rd1], %r5;
    ret;""",
    ".param .u64 x",
)


def run(text: str, params: list[object], grid: int = 1, block: int = 32, **options: object) -> RunResult:
    options.setdefault("engine", "interpreter")
    return run_ptx(text, "k", (grid, 1, 1), (block, 1, 1), params, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("engine", "threads"), list(product(ENGINES, (1, 2, None))))
def test_independent_ctas(engine: str, threads: int | None) -> None:
    data = np.arange(640, dtype=np.int32)
    seen: list[tuple[int, int]] = []
    result = run(
        ADD_ONE, [data], 10, 64, engine=engine, threads=threads, progress=lambda *at: seen.append(at)
    )
    np.testing.assert_array_equal(data, np.arange(640) + 1)
    assert result.ctas == 10
    assert result.counters.warp_instructions == 10 * 2 * 11
    assert seen[-1] == (10, 10)


def test_tensors_are_written_in_place() -> None:
    packed = torch.zeros(4, 64, dtype=torch.int32)
    run(ADD_ONE, [packed[1:3]], 4, 32)
    assert packed.sum(1).tolist() == [0, 64, 64, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fault_names_tensor_thread_and_line(engine: str) -> None:
    data = np.zeros(100, np.int32)
    with pytest.raises(KernelFault) as caught:
        run(ADD_ONE, [data], 8, 32, engine=engine)
    fault = caught.value
    assert fault.kind is FaultKind.OUT_OF_BOUNDS
    side = re.compile(wording("sim.machine.after-start", start=400))
    assert re.search(wording("sim.machine.nearest-allocation", name="x", size=400, side=side), fault.message)
    assert fault.thread is not None
    assert "CTA (3, 0, 0), warp 0" in fault.thread
    assert fault.place is not None
    assert fault.place.text.startswith("ld.global.b32 %r5")
    run(ADD_ONE, [np.zeros(256, np.int32)], 8, 32, engine=engine)


def test_the_lowest_cta_that_fails_is_reported() -> None:
    for _ in range(5):
        with pytest.raises(KernelFault, match=r"CTA \(2, 0, 0\)"):
            run(ADD_ONE, [np.zeros(64, np.int32)], 40, 32, threads=4)


def test_parameters() -> None:
    text = module(
        """
    ld.param.b64 %rd1, [out];
    ld.param.b32 %r1, [a];
    ld.param.b64 %rd2, [b];
    ld.param.b32 %r2, [c];
    ld.param.b32 %r3, [s+4];
    st.global.b32 [%rd1], %r1;
    st.global.b64 [%rd1+8], %rd2;
    st.global.b32 [%rd1+16], %r2;
    st.global.b32 [%rd1+20], %r3;
    ret;""",
        ".param .u64 out, .param .s32 a, .param .f64 b, .param .f32 c, .param .align 4 .b8 s[8]",
    )
    out = np.zeros(24, np.uint8)
    run(text, [out, -5, 2.5, 1.5, struct.pack("<ii", 1, 77)])
    assert struct.unpack("<i4xdfi", out.tobytes()) == (-5, 2.5, 1.5, 77)
    for params, message in (
        ([out, -5, 2.5, 1.5], wording("sim.parameter-count", wanted=5, given=4)),
        ([out, 1 << 40, 2.5, 1.5, b""], wording("sim.parameter-range", name="a")),
        ([out, "x", 2.5, 1.5, b""], "a str for a"),
        ([out, 1, 2.5, 1.5, bytes(9)], wording("sim.parameter-size", name="s", size=8, given=9)),
        ([out, 1, 2.5, 1.5, bytes(7)], wording("sim.parameter-size", name="s", size=8, given=7)),
        ([out, out, 2.5, 1.5, b""], wording("sim.parameter-type", type="ndarray", name="a", size=4)),
    ):
        with pytest.raises(LaunchError, match=message):
            run(text, params)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match=r"device|meta"):
        run(ADD_ONE, [torch.zeros(4, device="meta")])


def test_names_of_things_that_are_not() -> None:
    with pytest.raises(LaunchError, match=wording("sim.kernel-missing", name=re.compile("'q'.*"), known="k")):
        run_ptx(ADD_ONE, "q", (1, 1, 1), (32, 1, 1), [])
    with pytest.raises(
        LaunchError, match=wording("sim.kernel-missing", name=re.compile(r"\['k'\].*"), known="k")
    ):
        run_ptx(ADD_ONE, ["k"], (1, 1, 1), (32, 1, 1), [])  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="engine 'fast'"):
        run(ADD_ONE, [0], engine="fast")
    with pytest.raises(InputError, match="schedule 'random'"):
        run(ADD_ONE, [np.zeros(32, np.int32)], schedule="random")
    with pytest.raises(
        LaunchError,
        match=wording("sim.setting-unknown", setting="mma", value="sloppy", known="hardware and exact"),
    ):
        run(ADD_ONE, [np.zeros(32, np.int32)], mma="sloppy")
    data = np.zeros(32, np.int32)
    with pytest.raises(LaunchError, match=wording("sim.threads-wrong", threads=0)):
        run(ADD_ONE, [data], threads=0)
    assert not data.any()


def test_module_variables() -> None:
    text = module(
        """
    ld.param.b64 %rd1, [out];
    mov.u64 %rd2, table;
    ld.global.b32 %r1, [%rd2+8];
    st.global.b32 [%rd1], %r1;
    ret;""",
        ".param .u64 out",
        before=".global .align 4 .u32 table[4] = {3, 5, 7, 9};",
    )
    out = np.zeros(1, np.int32)
    run(text, [out])
    assert out[0] == 7


EMPTY = "    ret;"


@pytest.mark.parametrize(
    ("directives", "grid", "block", "options", "message"),
    [
        ("", (1, 1, 1), (1024, 1, 2), {}, wording("sim.machine.block-too-large", threads=2048, limit=1024)),
        ("", (1, 1, 1), (1, 1, 65), {}, r"block \(1, 1, 65\)"),
        ("", (0, 1, 1), (32, 1, 1), {}, r"grid \(0, 1, 1\)"),
        ("", (1, 65536, 1), (32, 1, 1), {}, r"grid \(1, 65536, 1\)"),
        (
            "",
            (1, 1, 1),
            (32, 1, 1),
            {"smem": 227 * 1024 + 1},
            wording("sim.machine.shared-too-large", bytes=232449),
        ),
        (
            "",
            (1, 1, 1),
            (512, 1, 1),
            {"registers": 129},
            wording("sim.machine.registers-too-many", threads=512, each=129, taken=69632),
        ),
        (".maxnreg 136", (1, 1, 1), (512, 1, 1), {}, wording("sim.compiler.register-count", count=136)),
        (".reqntid 64, 1, 1", (1, 1, 1), (32, 1, 1), {}, r"requires \(64, 1, 1\)"),
        (".maxntid 64, 1, 1", (1, 1, 1), (65, 1, 1), {}, wording("sim.machine.block-over-maxntid", most=64)),
    ],
)
def test_over_budget(directives: str, grid: tuple, block: tuple, options: dict, message: str) -> None:  # type: ignore[type-arg]
    text = module(EMPTY, "", directives=directives)
    with pytest.raises(KernelFault, match=f"{FaultKind.BUDGET}: .*{message}"):
        run_ptx(text, "k", grid, block, [], engine="interpreter", **options)


@pytest.mark.parametrize(
    ("directives", "block", "options"),
    [
        ("", (1024, 1, 1), {}),
        ("", (32, 1, 1), {"smem": 227 * 1024}),
        ("", (512, 1, 1), {"registers": 128}),
        (".reqntid 64, 1, 1", (64, 1, 1), {}),
        (".maxntid 64, 1, 1", (64, 1, 1), {}),
    ],
)
def test_within_budget(directives: str, block: tuple, options: dict) -> None:  # type: ignore[type-arg]
    text = module(EMPTY, "", directives=directives)
    run_ptx(text, "k", (1, 1, 1), block, [], engine="interpreter", **options)


@pytest.mark.parametrize(
    ("directives", "options", "message"),
    [
        ("", {"cluster": (3, 1, 1)}, wording("sim.machine.cluster-divides", whole=(4, 1, 1), part=(3, 1, 1))),
        ("", {"cluster": (32, 1, 1)}, wording("sim.machine.cluster-size", cluster=(32, 1, 1), ctas=32)),
        ("", {"cluster": (0, 1, 1)}, wording("sim.machine.cluster-size", cluster=(0, 1, 1), ctas=0)),
        (
            ".reqnctapercluster 2, 1, 1",
            {"cluster": (4, 1, 1)},
            wording("sim.machine.cluster-required", cluster=(4, 1, 1), kernel="k", required=(2, 1, 1)),
        ),
        (
            ".maxclusterrank 2",
            {"cluster": (4, 1, 1)},
            wording("sim.machine.cluster-most", cluster=(4, 1, 1), kernel="k", most=2),
        ),
        (
            "",
            {"cluster": (2, 1, 1), "preferred_cluster": (3, 1, 1)},
            wording("sim.machine.cluster-divides", whole=(3, 1, 1), part=(2, 1, 1)),
        ),
    ],
)
def test_clusters_over_budget(directives: str, options: dict, message: re.Pattern) -> None:  # type: ignore[type-arg]
    text = module(EMPTY, "", directives=directives)
    with pytest.raises(KernelFault, match=message) as caught:
        run(text, [], 4, **options)
    assert caught.value.kind is FaultKind.BUDGET
    run(text, [], 4, cluster=(2, 1, 1))


def test_static_and_dynamic_shared_memory_share_the_budget() -> None:
    body = "    .shared .align 4 .b8 static[2048];\n    ret;"
    run(module(body, ""), [], smem=225 * 1024)
    with pytest.raises(KernelFault, match=wording("sim.machine.shared-too-large", bytes=233472)):
        run(module(body, ""), [], smem=226 * 1024)


# Each CTA adds one to a counter and waits until all have: a grid barrier.
GRID_BARRIER = module(
    """
    ld.param.b64 %rd1, [count];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %nctaid.x;
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra DONE;
    atom.acq_rel.gpu.global.add.u32 %r3, [%rd1], 1;
SPIN:
    ld.acquire.gpu.global.b32 %r4, [%rd1];
    setp.lt.u32 %p2, %r4, %r2;
    @%p2 bra SPIN;
    mul.wide.u32 %rd2, %r3, 4;
    add.s64 %rd2, %rd2, %rd1;
    mov.u32 %r5, %ctaid.x;
    st.global.b32 [%rd2+4], %r5;
DONE:
    bar.sync 0;
    ret;""",
    ".param .u64 count",
)


@pytest.mark.parametrize("engine", ENGINES)
def test_ctas_that_wait_for_each_other(engine: str) -> None:
    """All CTAs are resident together, and their atomics come in ascending order."""
    data = np.zeros(13, np.int32)
    run(GRID_BARRIER, [data], 12, 64, engine=engine, threads=2)
    assert data.tolist() == [12, *range(12)]


def test_float_atomics_come_in_one_order() -> None:
    """A float sum depends on its order: ascending CTAs, whatever the number of threads."""
    text = module(
        f"""
    ld.param.b64 %rd1, [x];
    ld.param.b64 %rd2, [sum];
    {INDEX}
    add.s64 %rd1, %rd1, %rd3;
    ld.global.b32 %r5, [%rd1];
    red.relaxed.gpu.global.add.f32 [%rd2], %r5;
    ret;""",
        ".param .u64 x, .param .u64 sum",
    )
    values = np.random.default_rng(1).standard_normal(256).astype(np.float32)
    want = np.float32(0)
    for value in values:
        want = np.float32(want + value)
    for threads in (1, 4):
        total = np.zeros(1, np.float32)
        run(text, [values, total], 8, 32, threads=threads)
        assert total[0] == want


def test_which_kernels_communicate() -> None:
    from gdnbench.sim.ptx.parser import parse

    for instruction, talks in {
        "ld.global.b32 %r1, [%rd1];": False,
        "ld.volatile.global.b32 %r1, [%rd1];": True,
        "ld.acquire.gpu.b32 %r1, [%rd1];": True,
        "ld.volatile.shared.b32 %r1, [%r2];": False,
        "st.release.gpu.global.b32 [%rd1], %r1;": True,
        "atom.shared.add.u32 %r1, [%r2], 1;": False,
        "atom.add.u32 %r1, [%rd1], 1;": True,
        "red.global.add.u32 [%rd1], 1;": True,
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r1], %r2;": True,
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], %r2;": False,
    }.items():
        kernel = parse(module(f"    {instruction}\n    ret;", "")).kernels["k"]
        assert ctas_communicate(kernel) is talks, instruction


def test_interrupting_a_kernel_that_never_ends() -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    text = module("LOOP:\n    bra LOOP;\n    ret;", "")
    with pytest.raises(KeyboardInterrupt):
        run(text, [], 4, 32, threads=2, progress=interrupt)


PIPELINE = """
    .shared .align 128 .b8 tile[2048];
    .shared .align 8 .b8 full[8];
    .reg .b64 %map;
    mov.b64 %map, desc;
    cvta.param.u64 %map, %map;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, tile;
    mov.u32 %r3, full;
    mov.u32 %r4, %ctaid.x;
    shl.b32 %r5, %r4, 4;
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
    @%p1 bra WAIT;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r3], {BYTES};
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r2], [%map, {{0, %r5}}], [%r3];
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
    @%p2 bra LOADED;
    bra WAIT;
LOADED:
    shl.b32 %r6, %r1, 2;
    add.s32 %r6, %r6, %r2;
    ld.shared.b32 %r7, [%r6];
    add.s32 %r7, %r7, 1;
    st.shared.b32 [%r6], %r7;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @%p1 bra DONE;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {{0, %r5}}], [%r2];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
DONE:
    ret;"""


def pipeline(expected: int = 2048, **options: object) -> np.ndarray:
    """Tiles of 16 x 32 words come by TMA, 512 threads add one, they leave by TMA; the last tile is short."""
    room = np.arange(40 * 32 + 8, dtype=np.int32)
    data = room[-room.ctypes.data % 16 // 4 :][: 40 * 32]
    data[:] = np.arange(40 * 32)
    tensor = Map(data.ctypes.data, "u32", (32, 40), (128,), (32, 16), 128)
    from gdnbench.sim.machine.memory import GlobalMemory

    memory = GlobalMemory()
    memory.add_array(data, "data")
    text = module(
        PIPELINE.replace("{BYTES}", str(expected)).replace("{{", "{").replace("}}", "}"),
        ".param .align 128 .b8 desc[128]",
    )
    run(text, [tensor.encode()], 3, 512, memory=memory, **options)
    return data


@pytest.mark.parametrize(("engine", "schedule"), list(product(ENGINES, SCHEDULES)))
def test_tma_in_and_out(engine: str, schedule: str) -> None:
    np.testing.assert_array_equal(pipeline(engine=engine, schedule=schedule), np.arange(40 * 32) + 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_expecting_too_many_bytes_is_a_deadlock(engine: str) -> None:
    with pytest.raises(KernelFault) as caught:
        pipeline(expected=2064, engine=engine)
    assert caught.value.kind is FaultKind.DEADLOCK
    assert re.search(
        wording("sim.machine.mbarrier-state", parity=0, phase=0, pending=0, expected=1, tx=16),
        caught.value.message,
    )
    assert "mbarrier.try_wait.parity.shared.b64 %p2" in caught.value.message


@pytest.mark.parametrize("engine", ENGINES)
def test_divergence_at_a_barrier(engine: str) -> None:
    body = """
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 7;
    @%p1 bra OTHER;
    bar.sync 0;
    ret;
OTHER:
    bar.sync 1;
    ret;"""
    with pytest.raises(KernelFault, match=f"{FaultKind.DIVERGENCE}: "):
        run(module(body, ""), [], engine=engine)
    run(module("    bar.sync 0;\n    bar.sync 1;\n    ret;", ""), [], engine=engine)


def test_resident_ctas() -> None:
    """148 SMs: by threads 2 x 1024, by shared memory 1 of 227 KB or 9 of 24 KB, by registers 4 x 128 x 128,
    or 3 if a thread has one more; 256 MB at most."""
    from tests.sim.machine.bench import launch

    assert resident_ctas(launch(threads=1024, shared=0)) == 148 * 2
    assert resident_ctas(launch(threads=128, shared=227 * 1024)) == 148
    assert resident_ctas(launch(threads=128, shared=24 * 1024)) == 148 * 9
    assert resident_ctas(launch(threads=128, shared=0, registers=128)) == 148 * 4
    assert resident_ctas(launch(threads=128, shared=0, registers=129)) == 148 * 3
    # 32 slots an SM would be 4,736 CTAs of 64 KB; 256 MB hold 4,096.
    assert resident_ctas(launch(threads=32, shared=0)) == 4096


@pytest.mark.parametrize(
    "change",
    [
        {"grid": (1, 1)},
        {"grid": (1, 1, 1, 1)},
        {"grid": 1},
        {"grid": (1.5, 1, 1)},
        {"grid": ("a", 1, 1)},
        {"block": (32.0, 1, 1)},
        {"smem": -1},
        {"smem": 1.5},
        {"smem": None},
        {"registers": -1},
        {"registers": "32"},
        {"schedule": None},
        {"engine": None},
        {"engine": ["compiled"]},
        {"mma": np.zeros(2)},
        {"threads": "2"},
        {"threads": 1.5},
        {"params": None},
        {"params": 7},
        {"params": "abc"},
        {"progress": 5},
        {"memory": []},
        {"ptx": None},
        {"ptx": b""},
    ],
)
def test_a_launch_of_what_is_no_setting(change: dict[str, object]) -> None:
    name = next(iter(change))
    launch = {
        "ptx": module("ret;", ""),
        "entry": "k",
        "grid": (1, 1, 1),
        "block": (32, 1, 1),
        "params": [],
        **change,
    }
    with pytest.raises(LaunchError, match=f"^{name} ") as caught:
        run_ptx(**launch)  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("declared", "value", "match"),
    [
        (".f32 a", 1e39, wording("sim.parameter-range", name="a", size=4)),
        (".f16 a", 1e9, wording("sim.parameter-range", name="a", size=2)),
        (".b64 a", np.array([None]), wording("sim.parameter-objects")),
        (".b64 a", np.frombuffer(b"constant", np.uint8), wording("sim.parameter-read-only")),
    ],
)
def test_a_parameter_that_cannot_be_passed(declared: str, value: object, match: str) -> None:
    with pytest.raises(LaunchError, match=match):
        run_ptx(module("ret;", f".param {declared}"), "k", (1, 1, 1), (32, 1, 1), [value])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_parameter_before_the_first(engine: str) -> None:
    with pytest.raises(KernelFault) as caught:
        run_ptx(module("ld.param.b32 %r0, [-4];", ""), "k", (1, 1, 1), (32, 1, 1), [], engine=engine)
    assert caught.value.kind is FaultKind.OUT_OF_BOUNDS


@pytest.mark.parametrize("end", ["", "ret;", "@%p1 ret;", "@%p2 exit;", "@%p1 bra OUT; mov.u32 %r2, 0; OUT:"])
def test_the_end_of_a_kernel_is_no_instruction(end: str) -> None:
    """Half of the lanes have %p1, none %p2; what they execute is counted once for each group of lanes."""
    text = module(f"mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16; setp.gt.u32 %p2, %r1, 99; {end}", "")
    counts = {engine: run(text, [], engine=engine, profile=True).counters for engine in ENGINES}
    expected = 3 + (2 if "bra" in end else int(bool(end)))
    assert {count.warp_instructions for count in counts.values()} == {expected}
    assert {sum(count.instructions.values()) for count in counts.values()} == {expected}


def test_a_constant_too_large_for_its_format() -> None:
    text = module(".reg .b16 %h; mov.b16 %h, 1e30;", "")
    with pytest.raises(InputError, match=wording("sim.ptx.value-too-wide", value="1e+30", width=16)):
        run_ptx(text, "k", (1, 1, 1), (32, 1, 1), [])
