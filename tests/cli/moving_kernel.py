# SPDX-License-Identifier: Apache-2.0
"""A kernel of gdn_decode as a file of a user's: torch computes, and a kernel in PTX moves the output into
place after so many rounds of an FMA that needs the one before."""

from __future__ import annotations

KERNEL = '''
import inspect

import torch

from gdnbench import sim
from gdnbench.sim.host import PtxKernel
from gdnbench.sim.ptx import parse
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent

ROUNDS = 100
FACTOR = 1
MODULE = parse(""".version 8.8
.target sm_90a
.address_size 64
.visible .entry move(.param .u64 source, .param .u64 target, .param .u32 count, .param .u32 rounds)
{
.reg .pred %p<2>;
.reg .b32 %r<5>;
.reg .f32 %f<1>;
.reg .b16 %h<1>;
.reg .b64 %d<3>;
ld.param.u64 %d0, [source];
ld.param.u64 %d1, [target];
ld.param.u32 %r0, [count];
ld.param.u32 %r1, [rounds];
mov.u32 %r2, %tid.x;
setp.ge.u32 %p0, %r2, %r0;
@%p0 bra END;
mul.wide.u32 %d2, %r2, 2;
add.u64 %d0, %d0, %d2;
add.u64 %d1, %d1, %d2;
cvt.rn.f32.u32 %f0, %r2;
mov.u32 %r3, 0;
ROUND:
fma.rn.f32 %f0, %f0, %f0, %f0;
add.u32 %r3, %r3, 1;
setp.lt.u32 %p1, %r3, %r1;
@%p1 bra ROUND;
mov.b32 %r4, %f0;
setp.eq.u32 %p1, %r4, 1;
@%p1 bra END;
ld.global.b16 %h0, [%d0];
st.global.b16 [%d1], %h0;
// more
END:
ret;
}
""")


def kernel(**call):
    names = inspect.signature(torch_recurrent).parameters
    found = torch_recurrent(**{name: call[name] for name in names if name in call})
    o = found["o"].contiguous() * FACTOR
    moved = torch.zeros_like(o)
    move = PtxKernel(MODULE, "move", (1, 1, 1), (32, 1, 1))
    sim.launch(move, o, moved, o.numel(), ROUNDS)
    return {**found, "o": moved}
'''
WRONG = KERNEL.replace("FACTOR = 1", "FACTOR = 2")
COMMUNICATING = KERNEL.replace("// more", "@%p1 red.global.add.u32 [%d1], 1;")
"""The same with an atomic that never runs: nobody knows what its CTAs tell one another."""


def rounds(count: int) -> str:
    """The kernel with so many rounds."""
    return KERNEL.replace("ROUNDS = 100", f"ROUNDS = {count}")


def launched_twice(text: str) -> str:
    """A kernel that launches a second time for one round."""
    launch = "sim.launch(move, o, moved, o.numel(), ROUNDS)"
    return text.replace(launch, f"{launch}\n    {launch.replace('ROUNDS', '1')}")
