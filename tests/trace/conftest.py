"""Traces of a kernel of a few lines of PTX, whose values anybody can tell: no compiler, no tensor core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdnbench.sim.run import run_ptx
from gdnbench.sim.value_trace import Selection
from gdnbench.sim.watch import Observed
from gdnbench.trace.writer import TraceWriter, make_trace

# Adds x[lane] to a sum, `rounds` times, the step i of it being i * x, and stores the sum. Lines are those of
# SOURCE.
PTX = """.version 8.7
.target sm_100a
.address_size 64
.file 1 "@FILE@"
.visible .entry sums(.param .u64 p_x, .param .u64 p_z, .param .u32 p_rounds)
{
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .f32 %f<5>;
    .reg .b64 %rd<6>;
    .loc 1 3 0
    ld.param.u64 %rd1, [p_x];
    ld.param.u64 %rd2, [p_z];
    ld.param.u32 %r1, [p_rounds];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.f32 %f1, [%rd4];
    .loc 1 4 0
    mov.f32 %f2, 0f00000000;
    mov.u32 %r3, 0;
LOOP:
    .loc 1 6 0
    cvt.rn.f32.u32 %f3, %r3;
    fma.rn.f32 %f2, %f3, %f1, %f2;
    .loc 1 5 0
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r1;
    @%p1 bra LOOP;
    .loc 1 7 0
    add.s64 %rd5, %rd2, %rd3;
    st.global.f32 [%rd5], %f2;
    ret;
}
"""
SOURCE = """# The kernel that the PTX is of.
def sums(x, z, rounds):
    value = x[thread]
    total = 0.0
    for step in range(rounds):
        total = total + step * value
    z[thread] = total
"""
LANES = 32

Edit = tuple[str, str]
Traced = Callable[..., Path]


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    """Traces a launch: `traced(name, x, rounds=3, edits=..., source=...)` is the path of the store."""

    def run(
        name: str,
        x: Any = None,
        *,
        rounds: int = 3,
        grid: int = 1,
        edits: tuple[Edit, ...] = (),
        source: str = SOURCE,
        of: str = "all",
        limit: int | None = None,
        launches: int = 1,
        wrap: Callable[[Observed], Observed] = lambda observed: observed,
    ) -> Path:
        path, file = tmp_path / f"{name}.zarr", tmp_path / f"{name}.py"
        file.write_text(source)
        text = PTX.replace("@FILE@", str(file))
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        values = np.arange(LANES, dtype=np.float32) if x is None else np.asarray(x, np.float32)
        if not path.exists():
            make_trace(path)
        writer = TraceWriter(path) if limit is None else TraceWriter(path, limit)
        for _ in range(launches):
            given = values.copy()
            z = np.zeros(LANES, np.float32)
            observed = wrap(Observed(writer.launch(Selection.parse(of), {})))
            run_ptx(text, "sums", (grid, 1, 1), (LANES, 1, 1), [given, z, rounds], observed=observed)
        return path

    return run
