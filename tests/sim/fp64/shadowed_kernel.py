# SPDX-License-Identifier: Apache-2.0
"""Runs a PTX body of one warp with fp64 shadows."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench.sim import Fp64Shadows, LostShadows, run_ptx

HEAD = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .f32 p3)
{
 .reg .b64 %rd<20>; .reg .f32 %f<60>; .reg .b32 %r<60>; .reg .b16 %h<20>; .reg .pred %p<8>;
 .reg .f64 %d<8>;
 .shared .align 16 .b8 tile[4096];
 .local .align 16 .b8 own[64];
 ld.param.u64 %rd1,[p0]; ld.param.u64 %rd2,[p1]; ld.param.u64 %rd3,[p2]; ld.param.f32 %f50,[p3];
 mov.u32 %r1,%tid.x; mul.wide.u32 %rd4,%r1,4;
 add.u64 %rd5,%rd1,%rd4; add.u64 %rd6,%rd2,%rd4; add.u64 %rd7,%rd3,%rd4;
 ld.global.f32 %f1,[%rd5]; ld.global.f32 %f2,[%rd6];
"""
TAIL = """
 st.global.f32 [%rd7],%f9;
 ret;
}
"""


class ShadowedRun:
    """What a launch of a body left in its output: its own numbers, those in fp64, and what was lost."""

    def __init__(self, body: str, a: Tensor, b: Tensor, parameter: float = 0.0) -> None:
        shadows = Fp64Shadows()
        observed = shadows.on_launch_begin("k", (1, 1, 1), ())
        self.out = torch.full((a.numel(),), torch.nan)
        text = HEAD + body + TAIL
        arguments = [a, b, self.out, parameter]
        run_ptx(text, "k", (1, 1, 1), (a.numel(), 1, 1), arguments, engine="interpreter", observed=observed)
        self.fp64, self.shadowed = shadows.numbers(self.out)
        self.lost: list[LostShadows] = shadows.losses()
        self.constants = shadows.constants.used
