# SPDX-License-Identifier: Apache-2.0
"""Constants chosen by lanes: the way of CPUs without AVX-512 gives the same as that of those with it."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.compiler import lane_lookup, native
from gdnbench.sim.run import run_ptx

# EX2 has 64 rows, RCP 128, tanh 51 and two tables of eleven.
SPELLINGS = ("ex2.approx.ftz.f32", "rcp.approx.ftz.f32", "lg2.approx.ftz.f32", "tanh.approx.f32")
COUNT = 1 << 14


def kernel() -> str:
    """Thread i: the functions of the f32 whose bits are 0x3A000000 + 17,000 i: 32 octaves around one."""
    stores = "\n".join(
        f"{spelling} %d, %a;\nst.global.b32 [%at+{4 * COUNT * i}], %d;"
        for i, spelling in enumerate(SPELLINGS)
    )
    return f""".version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .b64 out)
{{
.reg .b32 %i, %block, %a, %d;
.reg .b64 %at;
mov.u32 %i, %tid.x;
mov.u32 %block, %ctaid.x;
mad.lo.s32 %i, %block, 256, %i;
mad.lo.s32 %a, %i, 17000, 0x3A000000;
ld.param.b64 %at, [out];
mad.wide.u32 %at, %i, 4, %at;
{stores}
ret;
}}
"""


def run() -> np.ndarray:
    out = np.zeros((len(SPELLINGS), COUNT), np.uint32)
    run_ptx(kernel(), "k", (COUNT // 256, 1, 1), (256, 1, 1), [out], engine="compiled", threads=1)
    return out


def test_tables_in_memory_and_in_registers(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for registers in (True, False):
        if registers and not native.has_feature("avx512f"):
            pytest.skip("this CPU has no AVX-512: the other tests run the other way")
        monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path / str(registers)))
        monkeypatch.setattr(lane_lookup, "has_feature", lambda name, answer=registers: answer)
        found.append(run())
    np.testing.assert_array_equal(found[0], found[1])
    assert all(len(np.unique(row)) > 1000 for row in found[0])
