# SPDX-License-Identifier: Apache-2.0
"""The compiled engine at the machine's seam: what it executes by itself, suspended warps, faults.

What the machine does with an instruction is the expectation for compiled code that does it alone: a profiled
launch sends everything through the machine.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from gdnbench.sim.errors import KernelFault
from gdnbench.sim.run import RunResult, run_ptx

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
WARPS = 4
TURNS = 9

# Warps pass a token round a ring of mbarriers, TURNS times; each adds to it what it has. The waiting warps
# are suspended at try_wait again and again, and the lanes' registers must survive that.
RING = f"""{HEADER}
.visible .entry k(.param .b64 out)
{{
.reg .b32 %lane, %warp, %thread, %own, %next, %base, %turn, %parity, %token, %x, %keep, %place;
.reg .b64 %address, %state;
.reg .pred %first, %done, %more, %start;
.shared .align 8 .b8 full[{8 * WARPS}];
.shared .align 4 .b8 tokens[128];
ld.param.b64 %address, [out];
mov.u32 %thread, %tid.x;
mov.u32 %lane, %laneid;
shr.u32 %warp, %thread, 5;
mov.u32 %base, full;
mad.lo.s32 %own, %warp, 8, %base;
add.s32 %x, %warp, 1;
rem.u32 %x, %x, {WARPS};
mad.lo.s32 %next, %x, 8, %base;
mov.u32 %place, tokens;
mad.lo.s32 %place, %lane, 4, %place;
setp.eq.u32 %first, %thread, 0;
@%first st.shared.b32 [%place], 0;
{"".join(f"@%first mbarrier.init.shared.b64 [%base+{8 * i}], 32;" for i in range(WARPS))}
st.shared.b32 [%place], %lane;
bar.sync 0;
mad.lo.s32 %keep, %thread, 7, 3;
mov.b32 %turn, 0;
mov.b32 %parity, 0;
setp.eq.u32 %start, %warp, 0;
@%start bra SEND;
LOOP:
WAIT:
mbarrier.try_wait.parity.shared.b64 %done, [%own], %parity;
@!%done bra WAIT;
xor.b32 %parity, %parity, 1;
ld.shared.b32 %token, [%place];
add.s32 %token, %token, %keep;
st.shared.b32 [%place], %token;
SEND:
fence.proxy.async.shared::cta;
mbarrier.arrive.shared.b64 %state, [%next];
add.s32 %turn, %turn, 1;
setp.lt.u32 %more, %turn, {TURNS};
@%more bra LOOP;
mad.wide.u32 %address, %thread, 4, %address;
add.s32 %x, %keep, %turn;
ld.shared.b32 %token, [%place];
st.global.b32 [%address], %x;
ret;
}}
"""


def launch(text: str, engine: str = "compiled", **settings: object) -> tuple[np.ndarray, RunResult]:
    out = np.zeros(32 * WARPS, np.uint32)
    result = run_ptx(text, "k", (1, 1, 1), (32 * WARPS, 1, 1), [out], engine=engine, threads=1, **settings)
    return out, result


def test_suspended_warps_keep_their_registers() -> None:
    out, _ = launch(RING)
    assert out.tolist() == [7 * thread + 3 + TURNS for thread in range(32 * WARPS)]


@pytest.mark.parametrize("schedule", ["late", "early", "random:3"])
def test_alone_or_through_the_machine(schedule: str) -> None:
    alone, quick = launch(RING, schedule=schedule)
    through, watched = launch(RING, schedule=schedule, profile=True)
    interpreted, slow = launch(RING, engine="interpreter", schedule=schedule)
    assert alone.tobytes() == through.tobytes() == interpreted.tobytes()
    arrivals = watched.counters.instructions["mbarrier.arrive"]
    assert arrivals == WARPS * TURNS
    assert quick.counters.warp_instructions > 0
    assert slow.counters.warp_instructions > 0


def test_both_engines_count_alike() -> None:
    _, compiled = launch(RING, profile=True)
    _, interpreted = launch(RING, engine="interpreter", profile=True)
    assert compiled.counters.traffic == interpreted.counters.traffic
    assert compiled.counters.instructions == interpreted.counters.instructions
    assert compiled.counters.instructions["add.s32"] > WARPS * TURNS


def _kernel(body: str) -> str:
    return f"""{HEADER}
.visible .entry k(.param .b64 out)
{{
.reg .b32 %lane, %x;
.reg .b64 %address, %d;
.reg .pred %p;
.local .align 8 .b8 mine[16];
.shared .align 16 .b8 ours[256];
ld.param.b64 %address, [out];
mov.u32 %lane, %laneid;
mov.b32 %x, %lane;
{body}
ret;
}}
"""


BAD = {
    "beyond a tensor": "mad.wide.u32 %d, %lane, 4, %address;\nst.global.b32 [%d+500], %x;",
    "before a tensor": "ld.global.v2.b32 {%x, %x}, [%address+-8];",
    "misaligned global": "ld.global.b32 %x, [%address+2];",
    "beyond shared memory": "mad.lo.s32 %x, %lane, 16, 1024;\nst.shared.b32 [%x], %lane;",
    "below shared memory": "st.shared.b32 [16], %lane;",
    "misaligned shared": "mov.u32 %x, ours;\nld.shared.v4.b32 {%x, %x, %x, %x}, [%x+8];",
    "beyond local memory": "st.local.b64 [mine+16], %address;",
    "below the parameters": "ld.param.b32 %x, [out+-4];",
    "beyond the parameters": "ld.param.b64 %d, [out+8];",
    "far beyond the parameters": "ld.param.b64 %d, [out+0x7FFFFFFFFFFFFFF8];",
    "a shared variable as a parameter": "ld.param.b32 %x, [ours];",
    "below a shared variable": "ld.b32 %x, [ours+-4];",
    "a generic store to the parameters": "mov.u64 %d, out;\ncvta.param.u64 %d, %d;\nst.b32 [%d], %x;",
    "a generic atomic on the parameters": "mov.u64 %d, out;\ncvta.param.u64 %d, %d;\nred.add.u32 [%d], 1;",
    "the end of the address space": "mov.b64 %d, -4;\nld.global.b32 %x, [%d];",
    "the second element of an atomic": "atom.global.add.v2.f32 {%x, %x}, [%address+508], {%x, %x};",
    "generic null": "mov.b64 %d, 0;\nld.b32 %x, [%d];",
    "generic shared": "mov.u64 %d, 1000;\ncvta.shared.u64 %d, %d;\nst.b32 [%d], %x;",
    "atomic": "atom.global.add.u32 %x, [%address+4096], %x;",
    "matrix row": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%x}, [%x];",
    "trap": "setp.eq.u32 %p, %lane, 5;\n@%p trap;",
    "divergence": "setp.lt.u32 %p, %lane, 5;\n@%p bar.sync 0;\nbar.sync 1;",
    "no mbarrier": "mov.u32 %x, ours;\nmbarrier.arrive.shared.b64 _, [%x];",
    "arrivals past the phase": "mov.u32 %x, ours;\nsetp.eq.u32 %p, %lane, 0;\n"
    "@%p mbarrier.init.shared.b64 [%x], 3;\nbar.sync 0;\nmbarrier.arrive.shared.b64 _, [%x], 2;",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_faults_are_the_interpreters(body: str) -> None:
    """The same kind, words, place and thread."""
    faults = []
    for engine in ("interpreter", "compiled"):
        with pytest.raises(KernelFault) as caught:
            launch(_kernel(body), engine=engine)
        faults.append(str(caught.value))
    words = [
        re.sub("0x[0-9a-f]{8,}|[0-9]{10,}", "ADDRESS", fault) for fault in faults
    ]  # tensors lie elsewhere each time
    assert words[0] == words[1]
    assert "PTX line" in faults[1]
