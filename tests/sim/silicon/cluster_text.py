# SPDX-License-Identifier: Apache-2.0
"""What the kernels of clusters have in common: rows of answers for each CTA, a word a thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.sim.silicon.microkernel import HEADER, Array, Buffer, Dim3, MicroKernel, TensorMapOf, shape

LANES = 32

PRELUDE = """.reg .pred %p, %q, %one, %first, %more;
.reg .b32 %t, %rank, %size, %next, %cta, %s, %peer, %bar, %there, %buf, %far, %try, %r<24>;
.reg .b64 %x, %y, %in, %out, %tm, %d<8>;
.reg .b16 %h<4>;
.shared .align 1024 .b8 buffer[8192];
.shared .align 8 .b64 full[4];
mov.u32 %t, %tid.x;
mov.u32 %rank, %cluster_ctarank;
mov.u32 %size, %cluster_nctarank;
mov.u32 %cta, %ctaid.x;
add.u32 %next, %rank, 1;
rem.u32 %next, %next, %size;
setp.eq.u32 %one, %t, 0;
setp.eq.u32 %first, %rank, 0;
ld.param.u64 %x, [in_x];
ld.param.u64 %y, [out_y];
mad.lo.u32 %r0, %cta, @threads, %t;
mad.wide.u32 %in, %r0, 4, %x;
mad.lo.u32 %r0, %cta, @words, %t;
mad.wide.u32 %out, %r0, 4, %y;
mov.u32 %buf, buffer;
mad.lo.u32 %s, %t, 4, %buf;
mapa.shared::cluster.u32 %peer, %s, %next;
mapa.shared::cluster.u32 %far, %buf, %next;
mov.u32 %bar, full;
mapa.shared::cluster.u32 %there, %bar, %next;
"""
"""Thread t of a CTA has the word [%in] of x and, of answer i, the word [%out + 4 * threads * i]. Its word of
shared memory is [%s], which is at [%peer] in the CTA of the next rank; that CTA's `buffer` and `full` are at
[%far] and [%there]."""

SYNC = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"


def init(count: int | str, barriers: int = 1) -> str:
    """mbarriers of `count` arrivals at full[0], full[1], ...; then every CTA has started."""
    made = "".join(f"@%one mbarrier.init.shared::cta.b64 [full+{8 * i}], {count};\n" for i in range(barriers))
    return f"{made}@%one fence.mbarrier_init.release.cluster;\nfence.proxy.async;\n{SYNC}"


def wait(parity: int | str = 0, barrier: str = "full", label: str = "W", tries: int = 1000000) -> str:
    """Bounded: an mbarrier that misses bytes shows as 0 in %r23, and not as a hang."""
    return f"""mov.b32 %try, 0;
{label}:
mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [{barrier}], {parity};
@%p bra {label}_OVER;
add.u32 %try, %try, 1;
setp.lt.u32 %more, %try, {tries};
@%more bra {label};
{label}_OVER:
selp.b32 %r23, 1, 0, %p;
"""


def is_over(parity: int, register: str, barrier: str = "full") -> str:
    return (
        f"mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 %p, [{barrier}], {parity};\n"
        f"selp.b32 {register}, 1, 0, %p;\n"
    )


class Questions:
    """The body of a kernel and the labels of its answers."""

    def __init__(self, threads: int = LANES) -> None:
        self.threads = threads
        self.text: list[str] = []
        self.labels: list[str] = []

    def add(self, text: str) -> None:
        self.text.append(text if text.endswith("\n") else f"{text}\n")

    def store(self, label: str, register: str, kind: str = "b32") -> None:
        """A 64-bit register is an answer of two rows: its low and its high word."""
        if kind == "b64":
            self.add(f"mov.b64 {{%r20, %r21}}, {register};")
            self.store(f"{label}, low word", "%r20")
            self.store(f"{label}, high word", "%r21")
            return
        self.add(f"st.global.b32 [%out+{4 * self.threads * len(self.labels)}], {register};")
        self.labels.append(label)

    def kernel(
        self,
        name: str,
        cluster: int | Dim3,
        grid: int | Dim3 = 0,
        *,
        x: Array | None = None,
        maps: Sequence[TensorMapOf] = (),
        directives: str = "",
    ) -> MicroKernel:
        """In one cluster unless there is a grid."""
        over = shape(grid or cluster)
        ctas = over[0] * over[1] * over[2]
        words = self.threads * len(self.labels)
        prelude = PRELUDE.replace("@threads", str(self.threads)).replace("@words", str(words))
        params = [".param .u64 in_x", ".param .u64 out_y"]
        params += [f".param .align 64 .b8 {map_.name}[128]" for map_ in maps]
        text = (
            f"{HEADER}\n.visible .entry {name}({', '.join(params)}) {directives}\n{{\n{prelude}"
            f"{''.join(self.text)}ret;\n}}\n"
        )
        given = np.arange(ctas * self.threads, dtype=np.uint32) * 0x01010101 + 7 if x is None else x
        answers = np.full((ctas * len(self.labels), self.threads), 0xDEADBEEF, np.uint32)
        labels = tuple(f"{label}, CTA {cta}" for cta in range(ctas) for label in self.labels)
        buffers = (Buffer("in_x", given), Buffer("out_y", answers, labels))
        return MicroKernel(name, text, (*buffers, *maps), over, self.threads, cluster)
