# SPDX-License-Identifier: Apache-2.0
"""Scale vectors of a block-scaled product are read until the product's tcgen05.commit completes.

PTX ISA 9.0, 9.7.16.6: tcgen05.mma is asynchronous; tcgen05.cp and tcgen05.mma of one thread run in order,
tcgen05.st and tcgen05.mma do not.
"""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.run import run_ptx
from tests.sim.blackwell.block_scales import A_SCALES, B_SCALES, scale_fill, scaled
from tests.sim.blackwell.tensor_kernel import IMAGE_BYTES, matrix_descriptor
from tests.sim.silicon.microkernel import MicroKernel
from tests.subset import quick

# Every warp stores ones to a column of a scale vector, each in its own lanes.
STORE = (
    "mov.b32 %r10, 0x7f7f7f7f;\nadd.u32 %r9, %taddr, %lane0;\nadd.u32 %r9, %r9, {column};\n"
    "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r9], {{%r10}};\ntcgen05.wait::st.sync.aligned;\n"
)
WAIT = "WAIT:\n"
WAITED = "@!%done bra WAIT;\nbar.warp.sync -1;\ntcgen05.fence::after_thread_sync;\n"


def product() -> MicroKernel:
    return scaled("scales", "mxf8f6f4", "block32", (0, 0), scale_fill(1, 120, 130, 6, 0))


def findings(ptx: str, engine: str) -> set[tuple[str, Verdict, str, str]]:
    kernel = product()
    buffers = [np.ascontiguousarray(buffer.data).copy() for buffer in kernel.buffers()]
    ran = run_ptx(ptx, kernel.name, (1, 1, 1), (kernel.block, 1, 1), buffers, engine=engine, check=True)
    return {
        (
            one.cause,
            one.verdict,
            *sorted((one.first.place.text.split()[0][:11], one.second.place.text.split()[0][:11])),
        )
        for one in ran.found
    }


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
@pytest.mark.parametrize("column", quick([A_SCALES, A_SCALES + 3, B_SCALES], 2))
def test_a_store_over_scales_waits_for_the_commit(column: int, engine: str) -> None:
    text = product().ptx.replace("    ", "")
    assert text.count(WAIT) == text.count(WAITED) == 1
    store = STORE.format(column=column)
    early = text.replace(WAIT, f"{WAIT}bar.warp.sync -1;\n{store}AGAIN:\n").replace(
        "bra WAIT;\nbar", "bra AGAIN;\nbar"
    )
    assert findings(early, engine) == {(Cause.IN_FLIGHT.value, Verdict.ERROR, "tcgen05.mma", "tcgen05.st.")}
    assert findings(text.replace(WAITED, WAITED + store), engine) == set()


def test_a_copy_of_scales_needs_no_wait_before_the_product() -> None:
    """Copies over both vectors by the thread that issues the product."""
    kernel = product()
    text = kernel.ptx.replace("    ", "")
    copies = [*matrix_descriptor("%d2", IMAGE_BYTES - 512, 16, 128, 0)]
    for column in (A_SCALES, B_SCALES):
        copies += [
            f"add.u32 %r9, %taddr, {column};",
            "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r9], %d2;",
        ]
    first = "add.u32 %r0, %smem, 0;\n"
    assert text.count(first) == 1
    assert findings(text.replace(first, "\n".join(copies) + "\n" + first), "compiled") == set()
