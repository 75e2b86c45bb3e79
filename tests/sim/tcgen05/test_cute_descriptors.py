# SPDX-License-Identifier: Apache-2.0
"""Matrix descriptors as the CuTe DSL makes them: a kernel writes them out, the simulator runs it.

The strides that this folder's tests derive from a layout are those that CuTe encodes, and the decoder finds
them.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import numpy as np
import pytest
import torch
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.memory import SmemAllocator
from cutlass.utils import blackwell_helpers as helpers

from gdnbench import sim
from gdnbench.sim.machine.tcgen05_descriptor import decode_matrix, encode_matrix
from tests.sim.tcgen05.cute_layouts import DTYPES, shared_layout
from tests.sim.tcgen05.products import KIND, LAYOUT_CODE, STEP

M = 128
KINDS = ["INTER", "SW32", "SW64", "SW128"]


class Descriptors:
    """One descriptor of a 128-row operand for each atom, into `out`."""

    def __init__(self, name: str, mn_major: bool, kinds: list[str]) -> None:
        self.name, self.mn_major, self.kinds = name, mn_major, kinds
        self.depth = 4 * STEP[KIND[name]]

    @cute.jit
    def __call__(self, out: cute.Tensor, stream: cuda.CUstream) -> None:
        self.kernel(out).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, out: cute.Tensor) -> None:
        dtype = DTYPES[self.name]
        major = OperandMajorMode.MN if self.mn_major else OperandMajorMode.K
        mma = helpers.make_trivial_tiled_mma(
            dtype, dtype, major, major, cutlass.Float32, tcgen05.CtaGroup.ONE, (M, 64)
        )
        shared = SmemAllocator()
        for index in cutlass.range_constexpr(len(self.kinds)):
            kind = getattr(tcgen05.SmemLayoutAtomKind, ("MN_" if self.mn_major else "K_") + self.kinds[index])
            atom = tcgen05.make_smem_layout_atom(kind, dtype)
            layout = tcgen05.tile_to_mma_shape(atom, mma.partition_shape_A((M, self.depth)))
            tensor = shared.allocate_tensor(dtype, layout.outer, 1024, layout.inner)
            out[index] = tcgen05.smem_descriptor_to_int(mma.make_fragment_A(tensor).iterator)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("name", "mn_major", "kinds"),
    [
        ("bf16", False, KINDS),
        ("bf16", True, KINDS),
        ("tf32", False, KINDS),
        ("tf32", True, ["SW128_32B"]),
        ("e4m3", False, KINDS),
        ("e4m3", True, KINDS),
    ],
)
def test_strides_are_those_that_cute_encodes(name: str, mn_major: bool, kinds: list[str]) -> None:
    work = Descriptors(name, mn_major, kinds)
    fake = make_fake_tensor(cutlass.Int64, (len(kinds),), (1,), assumed_align=16)
    compiled = sim.compile(work, fake, make_fake_stream(), arch="sm_100a")
    out = torch.zeros(len(kinds), dtype=torch.int64)
    sim.launch(compiled, out)
    for kind, bits in zip(kinds, out.numpy().view(np.uint64).tolist(), strict=True):
        layout = shared_layout(kind, name, mn_major, M, work.depth)
        found = decode_matrix(bits)
        assert encode_matrix(found) == bits
        assert found.swizzle == LAYOUT_CODE[layout.swizzle]
        assert (found.leading, found.stride) == layout.strides()
        assert (found.base_offset, found.start % 1024) == (0, 0)
