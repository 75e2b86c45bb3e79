# SPDX-License-Identifier: Apache-2.0
"""Plans of kernels: what they refuse, what they print, and that headers and launches are as they say."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import IntEnum
from importlib import import_module
from pathlib import Path

import pytest

import gdnbench_kernels.gdn_prefill
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.gdn_prefill.segment_sources import SEGMENT
from gdnbench_kernels.gdn_prefill.synth import synth
from gdnbench_kernels.plan import (
    SMEM_LIMIT,
    TMEM_COLUMNS,
    Accumulator,
    Buffer,
    KernelPlan,
    Pipeline,
    PlanError,
    Sync,
)
from gdnbench_kernels.run import run_kernel
from tests.messages import wording

LAUNCHES = {
    "sm100": ("chunk_metadata", "chunk_uw", "chunk_state", "chunk_output"),
    "sm100_fused": ("kernel_sm100_fused",),
    "sm100_fused_cp": (
        "chunk_metadata",
        "kernel_sm100_transfer",
        "kernel_sm100_scan",
        "kernel_sm100_fused",
    ),
}
KERNELS = tuple(dict.fromkeys(name for names in LAUNCHES.values() for name in names))
PROGRAMS = {
    "kernel_sm100_fused": "chunk_fused",
    "kernel_sm100_transfer": "chunk_transfer",
    "kernel_sm100_scan": "segment_scan",
}
"""Programs that are not named like their file."""


class Role(IntEnum):
    WORK = 0
    LOAD = 4


PLAN = KernelPlan(
    name="example",
    roles=Role,
    warps={"WORK": 4, "LOAD": 1},
    does={"WORK": "multiplies", "LOAD": "TMA of X"},
    smem=(
        Buffer("s_x", (64, 128), "bfloat16", "K-major", 2),
        Buffer("s_g", (3,), "float32", "flat", align=16),
    ),
    tmem=(
        Accumulator("t_low", (64, 64), 0, 64, "M=64", "low", 2),
        Accumulator("t_high", (64, 32), 96, 32, "M=64", "high"),
    ),
    pipelines=(Pipeline("x", 2, "LOAD", 1, "WORK", 4, 16384), Pipeline("acc", 1, "WORK", 1, "WORK", 128)),
    syncs=(Sync("barrier", "all", "the end"),),
)


def test_sizes() -> None:
    assert PLAN.threads == 160
    assert PLAN.threads_of(Role.LOAD) == 32
    assert PLAN.buffer("s_x").bytes == 2 * 64 * 128 * 2
    # s_x, s_g and what aligns the mbarriers, two of them a stage of a pipeline, tensor memory's address
    assert PLAN.smem_bytes == 32768 + 12 + 4 + 2 * (2 + 1) * 8 + 4
    assert PLAN.tmem_columns == 128
    assert [PLAN.accumulator(name).offset for name in ("t_low", "t_high")] == [0, (16 << 16) + 96]
    assert PLAN.pipeline("acc").empty_count == 128


def test_buffers_are_aligned() -> None:
    buffers = (Buffer("a", (3,), "int32", "flat", align=4), Buffer("b", (1,), "float32", "flat"))
    assert replace(PLAN, smem=buffers, pipelines=(), tmem=()).smem_bytes == 1024 + 8


@pytest.mark.parametrize(("columns", "allocated"), [(1, 32), (32, 32), (33, 64), (257, 512), (512, 512)])
def test_tensor_memory_is_allocated_by_powers_of_two(columns: int, allocated: int) -> None:
    part = Accumulator("t", (128, columns), 0, columns, "M=128")
    assert replace(PLAN, tmem=(part,)).tmem_columns == allocated


def test_no_tensor_memory() -> None:
    plan = replace(PLAN, tmem=())
    assert plan.tmem_columns == 0
    assert plan.smem_bytes == PLAN.smem_bytes - 4


def test_too_much_shared_memory() -> None:
    barriers = 2 * (2 + 1) * 8
    plan = replace(PLAN, tmem=(), smem=(Buffer("s_x", ((SMEM_LIMIT - barriers) // 4,), "int32", "flat"),))
    assert plan.smem_bytes == SMEM_LIMIT
    with pytest.raises(
        PlanError,
        match="example: "
        + wording("kernels.plan-shared-memory", ctas=1, bytes=SMEM_LIMIT + 4, limit=SMEM_LIMIT),
    ):
        replace(plan, tmem=PLAN.tmem)
    with pytest.raises(PlanError, match=rf"2 x {SMEM_LIMIT} bytes"):
        replace(plan, ctas_per_sm=2)


def test_every_cta_of_an_sm_takes_a_kibibyte_more() -> None:
    """Two of 115,712 bytes, and 1,024 for each, are all of an SM's 228 KiB."""
    x = Buffer("s_x", (115_712 // 4,), "int32", "flat")
    plan = replace(PLAN, tmem=(), pipelines=(), smem=(x,), ctas_per_sm=2)
    assert plan.smem_bytes == 115_712
    with pytest.raises(
        PlanError, match=wording("kernels.plan-shared-memory", ctas=2, bytes=115720, limit=231424)
    ):
        replace(plan, smem=(replace(x, shape=(115_712 // 4 + 1,)),))


def test_too_much_tensor_memory() -> None:
    part = Accumulator("t", (128, 256), 0, 256, "M=128", stages=2)
    assert replace(PLAN, tmem=(part,)).tmem_columns == TMEM_COLUMNS
    with pytest.raises(
        PlanError, match=wording("kernels.plan-tensor-memory", ctas=1, columns=1024, limit=512)
    ):
        replace(PLAN, tmem=(replace(part, start=1),))
    with pytest.raises(PlanError, match="2 x 512 columns"):
        replace(PLAN, tmem=(part,), ctas_per_sm=2)


@pytest.mark.parametrize("lanes", [("low", "low"), ("high", "high"), ("all", "low"), ("high", "all")])
def test_accumulators_that_overlap(lanes: tuple[str, str]) -> None:
    """Stages count: the second begins in the first's last column."""
    first = Accumulator("one", (64, 32), 32, 32, "M=64", lanes[0], 2)
    second = Accumulator("two", (64, 32), 95, 32, "M=64", lanes[1])
    with pytest.raises(
        PlanError, match="example: " + wording("kernels.plan-overlap", first="one", second="two")
    ):
        replace(PLAN, tmem=(first, second))
    replace(PLAN, tmem=(first, replace(second, start=96)))
    replace(PLAN, tmem=(replace(first, lanes="low"), replace(second, lanes="high")))


def test_roles_leave_no_gap() -> None:
    with pytest.raises(
        PlanError, match="example: " + wording("kernels.plan-role", role="LOAD", warp=4, wanted=3)
    ):
        replace(PLAN, warps={"WORK": 3, "LOAD": 1})


def test_tables() -> None:
    assert PLAN.tables().split("\n") == [
        "    SMEM  shape               dtype     layout",
        "    s_x   64 x 128, 2 stages  bfloat16  K-major",
        "    s_g   3                   float32   flat",
        "",
        "    TMEM    shape              columns  lanes  layout",
        "    t_low   64 x 64, 2 stages  0..127   low    M=64",
        "    t_high  64 x 32            96..127  high   M=64",
        "",
        "    role  warps  does",
        "    WORK  0..3   multiplies",
        "    LOAD  4      TMA of X",
        "",
        "    pipeline  stages  full: arrivals        empty: arrivals",
        "    x         2       1 LOAD + 16384 bytes  4 WORK",
        "    acc       1       1 WORK                128 WORK",
        "",
        "    sync     who  orders",
        "    barrier  all  the end",
        "",
        "160 threads, 32836 bytes of SMEM, 128 columns of TMEM, 1 CTA an SM",
    ]


def test_tables_of_a_plan_that_has_little() -> None:
    tables = replace(PLAN, tmem=(), pipelines=(), syncs=(), ctas_per_sm=2).tables()
    assert [part.split()[0] for part in tables.split("\n\n")] == ["SMEM", "role", "160"]
    assert re.search(wording("kernels.plan-total", tmem=0, ctas=2, plural="s") + r"\Z", tables)


def test_the_tables_of_kernels_name_files_that_exist() -> None:
    folder = Path(gdnbench_kernels.gdn_prefill.__path__[0]).parent
    root = folder.parents[1]
    named, operation = set(), ""
    for line in (folder.parent / "README.md").read_text().splitlines():
        if heading := re.match(r"\*\*(\w+)\*\*", line):
            operation = heading[1]
        elif line.startswith("`memory_ceiling.py`"):
            operation = ""
        elif not line.startswith("| "):
            continue
        for name in re.findall(r"`([\w/]+\.py)`", line):
            kind = {"test_": "tests/kernels", "bench": "scripts/benchmarks"}.get(name[:5])
            beside, shared = folder / operation / name, folder / name
            named.add(root / kind / name if kind else beside if beside.is_file() else shared)
    assert [path for path in sorted(named) if not path.is_file()] == []
    assert len(named) > 30
    assert {path for path in folder.rglob("*.py") if "@cute.kernel" in path.read_text()} <= named


def test_every_kernel_with_a_plan_is_known_here() -> None:
    folder = Path(gdnbench_kernels.gdn_prefill.__path__[0])
    planned = {path.stem for path in folder.glob("*.py") if "\nPLAN = " in path.read_text()}
    assert planned == set(KERNELS)


@pytest.mark.parametrize("name", KERNELS)
def test_headers_quote_the_plan(name: str) -> None:
    module = import_module(f"gdnbench_kernels.gdn_prefill.{name}")
    assert module.PLAN.name == PROGRAMS.get(name, name)
    assert f"\n\n{module.PLAN.tables()}\n\n" in str(module.__doc__), (
        f"the tables are now\n{module.PLAN.tables()}"
    )


@pytest.mark.slow  # runs every kernel; each has tests of its own launch
@pytest.mark.parametrize("kernel", LAUNCHES)
def test_launches_are_as_planned(kernel: str) -> None:
    plans = [import_module(f"gdnbench_kernels.gdn_prefill.{name}").PLAN for name in LAUNCHES[kernel]]
    call = synth(seqlens=(SEGMENT + 1 if kernel == "sm100_fused_cp" else 3,), heads=(1, 1))
    with active() as session, programs_simulated():
        run_kernel(OPERATION, kernel, call)
    launches = [launch for report in session.reports for launch in report.launches]
    assert [(launch.block, launch.shared_bytes) for launch in launches] == [
        ((plan.threads, 1, 1), plan.smem_bytes) for plan in plans
    ]
