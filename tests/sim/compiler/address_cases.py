# SPDX-License-Identifier: Apache-2.0
"""Accesses at every kind of address, run by both engines. Run as a program, it prints what each one did:

    python -m tests.sim.compiler.address_cases SEED ADDRESSES

It prints a line of JSON before each run of the compiled engine and one after it, so that the last line of a
process that died names the access that killed it.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gdnbench.sim.errors import KernelFault, UnsupportedError
from gdnbench.sim.machine.engine_interface import LOCAL_WINDOW, PARAM_WINDOW, SHARED_BASE, SHARED_WINDOW
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import run_ptx

SIZE = 256  # bytes of each variable and of the tensor
PARAMETERS = 32
WRAP = 1 << 64

# The variable of each state space, and its first address there.
SYMBOLS = {"param": "data", "shared": "ours", "local": "mine", "const": "fixed", "global": "table"}
STARTS = {"param": 0, "shared": SHARED_BASE, "local": 0}
SIZES = {"param": PARAMETERS}
WINDOWS = {"shared": SHARED_WINDOW + SHARED_BASE, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}


@dataclass(frozen=True, slots=True)
class Form:
    """An instruction that accesses `width` bytes at [@]. `space` is where its addresses lie; "" for generic
    ones. `named`: it may name a variable as its address."""

    text: str
    space: str
    width: int
    named: bool = True


FORMS = (
    *(
        Form(f"ld.{space}.{kind} {into}, [@];", space, width)
        for space in ("param", "shared", "local", "const", "global")
        for kind, into, width in (("b8", "%h0", 1), ("b32", "%r0", 4), ("v2.b64", "{%d0, %d1}", 16))
    ),
    *(
        Form(f"st.{space}.{kind} [@], {of};", space, width)
        for space in ("shared", "local", "global")
        for kind, of, width in (("b16", "%h0", 2), ("v4.b32", "{%r0, %r0, %r0, %r0}", 16))
    ),
    *(
        Form(text, "", width, named=False)
        for text, width in (
            ("ld.b32 %r0, [@];", 4),
            ("ld.v2.b64 {%d0, %d1}, [@];", 16),
            ("st.b64 [@], %d0;", 8),
            ("atom.add.u32 %r0, [@], %r0;", 4),
            ("ldmatrix.sync.aligned.m8n8.x1.b16 {%r0}, [@];", 16),
        )
    ),
    Form("atom.shared.cas.b64 %d0, [@], %d0, %d0;", "shared", 8),
    Form("atom.global.add.u32 %r0, [@], 1;", "global", 4),
    Form("atom.global.add.v2.f32 {%r0, %r1}, [@], {%r0, %r1};", "global", 4),
    Form("red.global.max.u64 [@], %d0;", "global", 8),
    Form("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r0, %r1}, [@];", "shared", 16),
    Form("stmatrix.sync.aligned.m8n8.x1.shared.b16 [@], {%r0};", "shared", 16),
    # The machine's; compiled code executes some of them itself.
    Form("mbarrier.init.shared.b64 [@], 1;", "shared", 8),
    Form("mbarrier.arrive.shared.b64 _, [@];", "shared", 8),
    Form("mbarrier.try_wait.parity.shared.b64 %p0, [@], 1;", "shared", 8),
    Form("cp.async.ca.shared.global [@], [%base], 4;", "shared", 4),
    Form("cp.async.ca.shared.global [ours], [@], 4;", "global", 4),
    Form("cp.async.bulk.global.shared::cta.bulk_group [@], [ours], 16;", "global", 16),
    Form("cp.async.bulk.global.shared::cta.bulk_group [%base], [@], 16;", "shared", 16),
    Form("discard.global.L2 [@], 128;", "global", 128),
)


def offsets(form: Form, generator: random.Random, count: int) -> Iterator[int]:
    """Offsets from the start of the memory: at its ends, around the ends of 32 and 64 bits, and at random."""
    size, width = SIZES.get(form.space, SIZE), form.width
    near = [0, size, size - width, -width]
    known = [end + step for end in near for step in (0, -width, -1, 1, width)]
    far = [side << bits for bits in (31, 32, 52, 62, 63) for side in (-1, 1)]
    known += [end + step for end in far for step in (0, -4)]
    yield from generator.sample(known, min(count, len(known)))
    for _ in range(count // 4):
        yield generator.randrange(-size, 2 * size)
        yield generator.randrange(WRAP)


def program(form: Form, fixed: list[int]) -> str:
    """`which` chooses the access: 0 at the address `at` + lane * `step`, n at the constant fixed[n - 1]. The
    value that a lane loads goes to `results`."""
    body = "".join(
        f"setp.eq.u32 %p1, %which, {number};\n@%p1 bra L{number};\n" for number in range(1, len(fixed) + 1)
    )
    body += form.text.replace("@", "%at") + "\nbra DONE;\n"
    for number, offset in enumerate(fixed, 1):
        body += f"L{number}:\n{form.text.replace('@', f'{SYMBOLS[form.space]}{offset:+d}')}\nbra DONE;\n"
    return f""".version 8.8
.target sm_100a
.address_size 64
.const .align 16 .b8 fixed[{SIZE}];
.global .align 16 .b8 table[{SIZE}];
.global .align 16 .b8 results[{SIZE}];
.visible .entry k(.param .align 16 .u64 data, .param .u64 start, .param .u64 stride, .param .u32 choice) {{
.reg .pred %p0, %p1;
.reg .b16 %h0;
.reg .b32 %r0, %r1, %which, %lane, %place;
.reg .b64 %d0, %d1, %d2, %base, %at, %step;
.shared .align 128 .b8 ours[{SIZE}];
.local .align 16 .b8 mine[{SIZE}];
ld.param.u64 %base, [data];
ld.param.u64 %at, [start];
ld.param.u64 %step, [stride];
ld.param.u32 %which, [choice];
mov.u32 %lane, %laneid;
mov.u32 %place, ours;
mad.lo.u32 %place, %lane, {SIZE // 32}, %place;
mov.b64 %d0, 0x0123456789ABCDEF;
st.shared.b64 [%place], %d0;
bar.sync 0;
mov.b16 %h0, 0;
mov.b32 %r0, 0;
mov.b32 %r1, 0;
cvt.u64.u32 %d1, %lane;
mad.lo.u64 %at, %d1, %step, %at;
{body}
DONE:
cp.async.wait_all;
mov.b64 %d2, {{%r0, %r1}};
xor.b64 %d0, %d0, %d1;
xor.b64 %d0, %d0, %d2;
cvt.u64.u16 %d2, %h0;
xor.b64 %d0, %d0, %d2;
mov.u64 %at, results;
mad.wide.u32 %at, %lane, 8, %at;
st.global.b64 [%at], %d0;
ret;
}}
"""


class Memory:
    """Global memory: a tensor and the module's variables, each in the middle of unused memory. They keep
    their addresses, so that both engines say the same of one access."""

    NAMES = ("data", "table", "fixed", "results")
    APART = 1 << 14

    def __init__(self) -> None:
        room = np.zeros((len(self.NAMES) + 1) * self.APART, np.uint8)
        self._room = room[-room.ctypes.data % 128 :][: room.size - 128]
        self.tensor = self._room[self.APART :][:SIZE]
        self.base = int(self.tensor.ctypes.data)

    def launched(self) -> GlobalMemory:
        """The memory of a new launch: other bytes everywhere in it, and zeros around."""
        self._room[:] = 0
        memory = GlobalMemory()
        for number, name in enumerate(self.NAMES):
            address = self.base + number * self.APART
            self._room[(number + 1) * self.APART :][:SIZE] = np.arange(SIZE) * 7 + number
            memory.add(address, SIZE, name, self._room)
            memory.symbols[name] = address
        return memory

    def left(self) -> str:
        """The bytes of the tensor and the variables, and whether anything was written beside them."""
        found = []
        for number in range(len(self.NAMES)):
            cells = self._room[(number + 1) * self.APART :][:SIZE]
            found.append(cells.tobytes().hex())
            cells[:] = 0
        return " ".join(found) + " and wrote beside them" * bool(self._room.any())


def verdict(module: Module, memory: Memory, engine: str, which: int, at: int, step: int) -> str:
    """The fault of a launch, and the memory that it left."""
    params = [memory.tensor, at % WRAP, step % WRAP, which]
    begun = memory.launched()
    try:
        run_ptx(module, "k", (1, 1, 1), (32, 1, 1), params, engine=engine, memory=begun, threads=1)
    except (KernelFault, UnsupportedError) as error:
        # Lanes before the one that faults may have stored: how many is open.
        return f"{error}" + " and wrote beside" * ("beside" in memory.left())
    return f"done: {memory.left()}"


def accesses(form: Form, memory: Memory, generator: random.Random, count: int) -> Iterator[tuple[int, int]]:
    """(address, step from lane to lane) of register addresses."""
    if form.space:
        start = STARTS.get(form.space, memory.base)
        for offset in offsets(form, generator, count):
            yield start + offset, generator.choice((0, 0, form.width, 1, 1 << 59))
        return
    for start in (*WINDOWS.values(), memory.base):
        for offset in offsets(form, generator, max(count // 4, 2)):
            # This step puts lane 0 in shared, lane 1 in local and lane 2 in parameter memory.
            yield start + offset, generator.choice((0, 0, form.width, LOCAL_WINDOW - SHARED_WINDOW))


def main(seed: int, count: int) -> None:
    memory = Memory()
    for form in FORMS:
        generator = random.Random(f"{seed} {form.text}")
        fixed = list(offsets(form, generator, count)) if form.named else []
        module = parse(program(form, fixed))
        runs = [(number, 0, 0) for number in range(1, len(fixed) + 1)]
        runs += [(0, at, step) for at, step in accesses(form, memory, generator, count)]
        for which, at, step in runs:
            where = f"{fixed[which - 1]:+#x}" if which else f"{at % WRAP:#x} + lane * {step:#x}"
            access = f"{form.text} at {where}"
            print(json.dumps({"access": access}), flush=True)
            got = verdict(module, memory, "compiled", which, at, step)
            want = verdict(module, memory, "interpreter", which, at, step)
            print(json.dumps({"access": access, "compiled": got, "interpreter": want}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
