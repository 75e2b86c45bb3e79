# SPDX-License-Identifier: Apache-2.0
"""TMA copies of elements of 4 and 6 bits as PTX programs in both engines, by PTX ISA 5.5.1.1: sixteen
elements have 8 or 12 bytes in global memory and the first 8 or 12 of 16 in shared memory; a store of elements
of 6 bits takes the low six bits of each byte."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.run import run_ptx
from tests.sim.clusters.cluster_kernels import ENGINES
from tests.sim.machine.tma_model import Map
from tests.subset import quick

ROWS, ELEMENTS = 4, 128  # of a box; a thread has sixteen elements
PACKED = {"b4x16_p64": 8, "b6x16_p32": 12}

KERNEL = """
.version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 x, .param .align 64 .b8 map[128])
{
.reg .pred %p, %one;
.reg .b32 %t, %s, %r<8>;
.reg .b64 %x, %map;
.shared .align 1024 .b8 buffer[512];
.shared .align 8 .b64 full;
mov.u32 %t, %tid.x;
mov.u32 %s, buffer;
mad.lo.u32 %s, %t, 16, %s;
ld.param.u64 %x, [x];
mad.wide.u32 %x, %t, 16, %x;
mov.b64 %map, map;
cvta.param.u64 %map, %map;
setp.eq.u32 %one, %t, 0;
mov.u32 %r4, buffer;
mov.u32 %r5, full;
@body
ret;
}
"""
LOAD = """
@!%one bra wait;
mbarrier.init.shared.b64 [%r5], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 _, [%r5], @bytes;
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r4], [%map, {0, 2}], [%r5];
wait: bar.warp.sync -1;
again: mbarrier.try_wait.parity.shared.b64 %p, [%r5], 0;
@!%p bra again;
@words
"""
STORE = """
ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%x];
st.shared.v4.b32 [%s], {%r0, %r1, %r2, %r3};
fence.proxy.async.shared::cta;
bar.warp.sync -1;
@!%one bra done;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {0, 2}], [%r4];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
done: bar.warp.sync -1;
"""


def run(engine: str, body: str, x: np.ndarray, tensor: np.ndarray, dtype: str) -> None:
    """`tensor` has eight rows of two boxes."""
    memory = GlobalMemory()
    memory.add_array(tensor, "tensor")
    where = Map(tensor.ctypes.data, dtype, (2 * ELEMENTS, 8), (tensor.shape[1],), (ELEMENTS, ROWS), 0)
    text = KERNEL.replace("@body", body)
    run_ptx(text, "k", (1, 1, 1), (32, 1, 1), [x, where.encode()], engine=engine, memory=memory)


def tensor_of(dtype: str) -> np.ndarray:
    """Random rows at an address that is a multiple of 32."""
    row = 2 * ELEMENTS // 16 * PACKED[dtype]
    room = np.random.default_rng(row).integers(0, 256, 8 * row + 32, np.uint8)
    start = -room.ctypes.data % 32
    return room[start : start + 8 * row].reshape(8, row)


def load(dtype: str, words: int) -> str:
    moves = "".join(
        f"ld.shared.b32 %r0, [%s+{4 * word}];\nst.global.b32 [%x+{4 * word}], %r0;\n" for word in range(words)
    )
    box_bytes = ROWS * ELEMENTS // 16 * PACKED[dtype]
    return LOAD.replace("@bytes", str(box_bytes)).replace("@words", moves)


@pytest.mark.parametrize(("dtype", "engine"), quick(product(PACKED, ENGINES), 0, 3))
def test_load(dtype: str, engine: str) -> None:
    tensor, packed = tensor_of(dtype), PACKED[dtype]
    x = np.zeros((32, 16), np.uint8)
    run(engine, load(dtype, packed // 4), x, tensor, dtype)
    box = tensor[2 : 2 + ROWS, : ELEMENTS // 16 * packed]
    np.testing.assert_array_equal(x[:, :packed], box.reshape(32, packed))
    assert not x[:, packed:].any()


@pytest.mark.parametrize("dtype", PACKED)
def test_the_padding_has_no_value(dtype: str) -> None:
    """The twin of `test_load` that reads a word more, which the interpreter sees."""
    with pytest.raises(KernelFault) as caught:
        run(
            "interpreter",
            load(dtype, PACKED[dtype] // 4 + 1),
            np.zeros(512, np.uint8),
            tensor_of(dtype),
            dtype,
        )
    assert caught.value.kind is FaultKind.UNINITIALISED


@pytest.mark.parametrize("engine", ENGINES)
def test_store(engine: str) -> None:
    tensor = tensor_of("b6x16_p32")
    want = tensor.copy()
    x = np.random.default_rng(3).integers(0, 256, (32, 16), np.uint8)
    run(engine, STORE, x, tensor, "b6x16_p32")
    bits = np.unpackbits(x, axis=1, bitorder="little").reshape(32, 16, 8)[:, :, :6]
    want[2 : 2 + ROWS, :96] = np.packbits(bits.reshape(32, 96), axis=1, bitorder="little").reshape(ROWS, 96)
    np.testing.assert_array_equal(tensor, want)
