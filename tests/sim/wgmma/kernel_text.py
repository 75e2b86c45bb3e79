# SPDX-License-Identifier: Apache-2.0
"""A random kernel of wgmma as PTX, and its registers as the launch's buffers (`random_kernels`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.sim.wgmma.exact_sums import ENCODINGS
from tests.sim.wgmma.random_kernels import (
    Accumulator,
    Codes,
    Commit,
    Fence,
    Flip,
    M,
    Move,
    Multiply,
    Places,
    RandomKernel,
    Step,
    Wait,
)

THREADS = 128  # of a warpgroup
ROW = 4 * THREADS  # bytes of one register of every thread

HEAD = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 img, .param .u64 ins, .param .u64 outs)
{{
.reg .b32 %t, %tl, %wg, %i, %x, %word, %base, %n;
.reg .b64 %at, %ot, %from, %to, %low, %da, %db;
.reg .pred %q, %pt, %pf, %pl;
.shared .align 1024 .b8 memory[{bytes}];
mov.u32 %t, %tid.x;
and.b32 %tl, %t, 127;
shr.u32 %wg, %t, 7;
mov.b32 %base, memory;
ld.param.b64 %from, [img];
mov.u32 %i, %t;
FILL:
mad.wide.u32 %at, %i, 4, %from;
ld.global.b32 %word, [%at];
mad.lo.u32 %x, %i, 4, %base;
st.shared.b32 [%x], %word;
add.u32 %i, %i, {threads};
setp.lt.u32 %q, %i, {words};
@%q bra FILL;
shr.u32 %x, %base, 4;
cvt.u64.u32 %low, %x;
setp.eq.u32 %pt, %t, %t;
setp.ne.u32 %pf, %t, %t;
fence.proxy.async.shared::cta;
bar.sync 0;
ld.param.b64 %from, [ins];
ld.param.b64 %to, [outs];
mad.wide.u32 %at, %tl, 4, %from;
mad.wide.u32 %ot, %tl, 4, %to;
"""


def kernel_text(kernel: RandomKernel) -> str:
    """The entry `k`: shared memory's image, `inputs` and room for the accumulators, all by address."""
    head = HEAD.format(
        bytes=kernel.image.size, threads=THREADS * len(kernel.groups), words=kernel.image.size // 4
    )
    lines: list[str] = []
    for g in range(1, len(kernel.groups)):
        lines += [f"setp.eq.u32 %q, %wg, {g};", f"@%q bra G{g};"]
    loaded = stored = 0  # rows of the buffers
    for g, group in enumerate(kernel.groups):
        writers = [_Writer(one, f"{g}_{i}") for i, one in enumerate(group.accumulators)]
        lines.append(f"G{g}:")
        for writer in writers:
            lines += writer.declare()
            for register in (*writer.d("d"), *writer.a):
                lines.append(f"ld.global.b32 {register}, [%at+{ROW * loaded}];")
                loaded += 1
        lines += ["mov.u32 %n, 0;", f"LOOP{g}:", "setp.ne.u32 %pl, %n, 0;"]
        for step in group.steps:
            lines += _step(step, writers)
        lines += [
            "wgmma.fence.sync.aligned;",
            "add.u32 %n, %n, 1;",
            f"setp.lt.u32 %q, %n, {group.repetitions};",
            f"@%q bra LOOP{g};",
            "wgmma.commit_group.sync.aligned;",
            "wgmma.wait_group.sync.aligned 0;",
        ]
        for writer in writers:
            for register in writer.d("d"):
                lines.append(f"st.global.b32 [%ot+{ROW * stored}], {register};")
                stored += 1
        lines.append("bra END;")
    return head + "\n".join([*lines, "END:", "ret;", "}", ""])


def output_words(kernel: RandomKernel) -> int:
    return sum(THREADS * one.registers for group in kernel.groups for one in group.accumulators)


def _step(step: Step, writers: list[_Writer]) -> list[str]:
    match step:
        case Fence():
            return ["wgmma.fence.sync.aligned;"]
        case Commit():
            return ["wgmma.commit_group.sync.aligned;"]
        case Wait(left):
            return [f"wgmma.wait_group.sync.aligned {left};"]
        case Move(index, by):
            return list(writers[index].move(by))
        case Flip(index, of_a):
            return list(writers[index].flip(of_a))
        case Multiply(index):
            return list(writers[index].multiply(step))


class _Writer:
    """The text of what is done to one accumulator; `bank`, d or e, is the registers that it is in."""

    def __init__(self, accumulator: Accumulator, name: str) -> None:
        self._one = accumulator
        self._name = name
        self._bank = "d"
        self.a = [f"%a{name}_{r}" for r in range(4)]

    def d(self, bank: str) -> list[str]:
        return [f"%{bank}{self._name}_{r}" for r in range(self._one.registers)]

    def declare(self) -> Iterator[str]:
        count = self._one.registers
        yield f".reg .b32 %d{self._name}_<{count}>, %e{self._name}_<{count}>, %a{self._name}_<4>;"

    def move(self, by: str) -> Iterator[str]:
        old = self.d(self._bank)
        self._bank = "e" if self._bank == "d" else "d"
        new = self.d(self._bank)
        pairs = range(0, len(old), 2)
        yield "{"
        if by == "words":
            yield from (f"mov.b32 {to}, {of};" for to, of in zip(new, old, strict=True))
        elif by == "pairs":
            yield f".reg .b64 %w<{len(old)}>;"
            yield from (f"mov.b64 %w{r}, {{{old[r]}, {old[r + 1]}}};" for r in pairs)
            yield from (f"mov.b64 {{{new[r]}, {new[r + 1]}}}, %w{r};" for r in pairs)
        else:
            yield f".reg .b16 %h<{2 * len(old)}>;"
            yield from (f"mov.b32 {{%h{2 * r}, %h{2 * r + 1}}}, {of};" for r, of in enumerate(old))
            yield from (f"mov.b32 {to}, {{%h{2 * r}, %h{2 * r + 1}}};" for r, to in enumerate(new))
        yield "}"

    def flip(self, of_a: bool) -> Iterator[str]:
        width = ENCODINGS[self._one.types[1 if of_a else 0]].width
        signs = sum(1 << at - 1 for at in range(width, 33, width))
        for register in self.a if of_a else self.d(self._bank):
            yield f"xor.b32 {register}, {register}, {signs};"

    def multiply(self, step: Multiply) -> Iterator[str]:
        one = self._one
        b = one.b[step.b]
        k = b.codes.shape[1]
        yield f"add.s64 %db, %low, {b.descriptor};"
        settings = [-1 if step.negate_a else 1, -1 if step.negate_b else 1]
        orders = [int(b.layout.mn_major)]
        if step.a is None:
            a = f"{{{', '.join(self.a)}}}"
        else:
            a = "%da"
            yield f"add.s64 %da, %low, {one.a[step.a].descriptor};"
            orders.insert(0, int(one.a[step.a].layout.mn_major))
        if k == 16:  # 16-bit elements have orders
            settings += orders
        guard = f"@{step.guard} " if step.guard else ""
        name = f"wgmma.mma_async.sync.aligned.m{M}n{one.n}k{k}.{'.'.join(one.types)}"
        d, rest = ", ".join(self.d(self._bank)), ", ".join(map(str, settings))
        yield f"{guard}{name} {{{d}}}, {a}, %db, {step.scale}, {rest};"


def a_fragment(codes: Codes) -> Codes:
    """A[64, k] as uint32[4, 128]: lane 4 g + t has in register r the word t + 4 (r / 2) of row g + 8 (r % 2)
    of its warp's 16."""
    thread, register = np.arange(THREADS), np.arange(4)[:, None]
    rows = thread // 32 * 16 + thread % 32 // 4 + 8 * (register % 2)
    words: Codes = np.ascontiguousarray(codes).view(np.uint32)[rows, thread % 4 + 4 * (register // 2)]
    return words


def d_places(n: int) -> tuple[Places, Places]:
    """Row and column of each thread's element i of D[64, n], int64[n / 2, 128]."""
    thread, i = np.arange(THREADS), np.arange(n // 2)[:, None]
    rows = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
    return rows, 8 * (i // 4) + 2 * (thread % 4) + i % 2


def d_fragment(codes: Codes) -> Codes:
    """D[64, n] as uint32[registers, 128]; two halves share a register."""
    elements = codes[d_places(codes.shape[1])].astype(np.uint32)
    return elements if codes.dtype == np.uint32 else elements[::2] | elements[1::2] << np.uint32(16)


def d_matrix(accumulator: Accumulator, words: Codes) -> Codes:
    """D[64, n] from uint32[registers, 128]."""
    elements = words
    if accumulator.halves:
        elements = np.stack([words & 0xFFFF, words >> 16], axis=1).reshape(-1, THREADS)
    d = np.zeros((M, accumulator.n), accumulator.d.dtype)
    d[d_places(accumulator.n)] = elements
    return d


def inputs(kernel: RandomKernel) -> Codes:
    """The registers that the kernel's text loads, uint32, one row of 128 threads after the other."""
    parts = [
        part
        for group in kernel.groups
        for accumulator in group.accumulators
        for part in (d_fragment(accumulator.d), a_fragment(accumulator.a_registers))
    ]
    return np.concatenate([part.reshape(-1) for part in parts])


def answers(kernel: RandomKernel, words: Codes) -> list[list[Codes]]:
    """D[64, n] of every group's accumulators, from what the kernel stored."""
    rows = iter(words.reshape(-1, THREADS))
    return [
        [d_matrix(one, np.array([next(rows) for _ in range(one.registers)])) for one in group.accumulators]
        for group in kernel.groups
    ]
