# SPDX-License-Identifier: Apache-2.0
"""Which instructions write a byte of global memory: stores by their lanes' addresses, and bulk copies."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.checker.write_search import WriteSearch
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import run_ptx

# 32 threads: y[lane] = lane by a store, y[32..35] by a bulk copy of 16 bytes, y[0] once more by an atomic.
PTX = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry writes(.param .u64 y)
{
  .reg .pred %p<2>;
  .reg .b32 %r<5>;
  .reg .b64 %rd<5>;
  .shared .align 16 .b8 tile[16];
  ld.param.u64 %rd1, [y];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra done;
  atom.global.add.u32 %r4, [%rd1], 1;
  mov.u32 %r2, tile;
  mov.u32 %r3, 7;
  st.shared.v4.u32 [%r2], {%r3, %r3, %r3, %r3};
  fence.proxy.async.shared::cta;
  cp.async.bulk.global.shared::cta.bulk_group [%rd1+128], [%r2], 16;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
done:
  ret;
}
"""


@pytest.mark.parametrize(
    ("byte", "ops"),
    [
        (3, ["st.global.u32", "atom.global.add.u32"]),
        (4, ["st.global.u32"]),
        (127, ["st.global.u32"]),
        (128, ["cp.async.bulk.global.shared::cta.bulk_group"]),
        (143, ["cp.async.bulk.global.shared::cta.bulk_group"]),
        (144, []),
    ],
)
def test_writes_of_a_byte(byte: int, ops: list[str]) -> None:
    module, y = parse(PTX), np.zeros(64, np.uint32)
    search = WriteSearch(module.kernels["writes"], int(y.ctypes.data) + byte)
    run_ptx(module, "writes", (1, 1, 1), (32, 1, 1), [y], checker=search.begin, threads=1)
    assert [place.text.split()[0] for place in search.places] == ops
    assert y[32:37].tolist() == [7, 7, 7, 7, 0]
