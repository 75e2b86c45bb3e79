# SPDX-License-Identifier: Apache-2.0
"""griddepcontrol in two launches, the second with programmatic stream serialisation.

Every word that the second launch reads is read after griddepcontrol.wait, or after a barrier behind one, so
that the answer does not depend on when its CTAs started.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from tests.sim.silicon.microkernel import HEADER, Buffer, MicroKernel
from tests.sim.silicon.patterns import random_u32

CTAS, THREADS = 8, 64
NAPS = 8
"""Of 100 us, before the first launch stores: a dependent launch that did not wait would read too early."""

PARAMS = ".param .u64 in_x, .param .u64 middle, .param .u64 out_y"
OPENING = f"""{{
.reg .pred %q;
.reg .b32 %t, %cta, %i, %v, %w, %n;
.reg .b64 %x, %m, %y, %at;
mov.u32 %t, %tid.x;
mov.u32 %cta, %ctaid.x;
mad.lo.u32 %i, %cta, {THREADS}, %t;
ld.param.u64 %x, [in_x];
ld.param.u64 %m, [middle];
ld.param.u64 %y, [out_y];
"""
SLEEP = NAPS * "nanosleep.u32 100000;\n"
LAUNCH, WAIT = "griddepcontrol.launch_dependents;\n", "griddepcontrol.wait;\n"
# middle[i] = 3 * x[i] + 1
FIRST = """mad.wide.u32 %at, %i, 4, %x;
ld.global.b32 %v, [%at];
mad.lo.u32 %v, %v, 3, 1;
mad.wide.u32 %at, %i, 4, %m;
st.global.b32 [%at], %v;
"""
# y[i] = middle[n - 1 - i] + x[i], and then middle[n - 1 - i] = i: words of other CTAs, written over
SECOND = f"""mov.u32 %w, {CTAS * THREADS - 1};
sub.u32 %w, %w, %i;
mad.wide.u32 %at, %w, 4, %m;
ld.global.b32 %v, [%at];
st.global.b32 [%at], %i;
mad.wide.u32 %at, %i, 4, %x;
ld.global.b32 %n, [%at];
add.u32 %v, %v, %n;
mad.wide.u32 %at, %i, 4, %y;
st.global.b32 [%at], %v;
"""
ONE_THREAD = "setp.ne.u32 %q, %t, 0;\n@%q bra MET;\n@@MET:\nbar.sync 0;\n"


@dataclass(frozen=True, slots=True)
class Pair:
    """Bodies of the two launches."""

    first: str
    second: str


PAIRS = {
    "launched_at_once": Pair(f"{LAUNCH}{SLEEP}{FIRST}", f"{WAIT}{SECOND}"),
    "launched_late": Pair(f"{SLEEP}{FIRST}{LAUNCH}", f"{WAIT}{SECOND}"),
    "never_launched": Pair(f"{SLEEP}{FIRST}", f"{WAIT}{SECOND}"),
    "launched_by_one_thread": Pair(f"{ONE_THREAD.replace('@@', LAUNCH)}{SLEEP}{FIRST}", f"{WAIT}{SECOND}"),
    "launched_by_some_ctas": Pair(
        f"setp.gt.u32 %q, %cta, 3;\n@%q bra NOT;\n{LAUNCH}NOT:\n{SLEEP}{FIRST}", f"{WAIT}{SECOND}"
    ),
    "launched_twice": Pair(f"{LAUNCH}{SLEEP}{FIRST}{LAUNCH}", f"{WAIT}{WAIT}{SECOND}"),
    "one_thread_waits": Pair(f"{LAUNCH}{SLEEP}{FIRST}", f"{ONE_THREAD.replace('@@', WAIT)}{SECOND}"),
    "the_first_waits_for_nothing": Pair(f"{WAIT}{LAUNCH}{SLEEP}{FIRST}", f"{WAIT}{SECOND}"),
    "the_second_launches_too": Pair(f"{LAUNCH}{SLEEP}{FIRST}", f"{LAUNCH}{WAIT}{SECOND}"),
}


def pair(name: str, bodies: Pair) -> MicroKernel:
    first, second = f"{name}_first", f"{name}_second"
    entries = "\n".join(
        f".visible .entry {entry}({PARAMS})\n{OPENING}{body}ret;\n}}"
        for entry, body in ((first, bodies.first), (second, bodies.second))
    )
    words = CTAS * THREADS
    rows = tuple(f"CTA {cta}" for cta in range(CTAS))
    return MicroKernel(
        name,
        f"{HEADER}\n{entries}\n",
        (
            Buffer("in_x", random_u32(520, words)),
            Buffer("middle", np.full((CTAS, THREADS), 0xDEADBEEF, np.uint32), rows),
            Buffer("out_y", np.full((CTAS, THREADS), 0xDEADBEEF, np.uint32), rows),
        ),
        CTAS,
        THREADS,
        entry=first,
        dependent=second,
    )


KERNELS: tuple[Callable[[], MicroKernel], ...] = tuple(
    partial(pair, name, bodies) for name, bodies in PAIRS.items()
)
