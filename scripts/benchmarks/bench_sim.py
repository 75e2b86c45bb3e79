# SPDX-License-Identifier: Apache-2.0
"""How fast the simulator's compiled engine is on this machine.

    python scripts/benchmarks/bench_sim.py [--lines 2000] [--seconds 2] [--repeats 3]

Prints full-warp instructions per second on a loop of mixed instructions (integer, f32, f32x2, shared loads
and stores, shuffles, conversions), the time until a kernel of 2,500 PTX lines is ready to run, first and
from the cache, the tensor-core model's products per second, and those of wgmma as instructions, each on one
core. Then a record as models
serve it, 2,048 tokens with 16 and 32 heads, through FlashInfer's Blackwell kernel on all cores, and the
memory that it took; that needs `pip install --no-deps flashinfer-python==0.7.2.post1`.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from gdnbench import sim
from gdnbench.errors import Exit
from gdnbench.sim import run_ptx
from gdnbench.sim.ptx import parse
from gdnbench.sim.tensorcore import FORMATS, Product, multiply
from gdnbench.synth import synthesise

TOKENS, HEADS = 2048, (16, 32)

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
REGISTERS, PAIRS, HALVES = 24, 8, 8

# What compiled kernels consist of, about: (weight, instruction); r, d, h are filled with registers.
MIX = (
    (10, "add.s32 {r}, {r}, {r};"),
    (4, "mad.lo.s32 {r}, {r}, {r}, {r};"),
    (6, "and.b32 {r}, {r}, {r};"),
    (4, "shl.b32 {r}, {r}, 3;"),
    (4, "xor.b32 {r}, {r}, {r};"),
    (4, "selp.b32 {r}, {r}, {r}, %p1;"),
    (3, "setp.lt.s32 %p1, {r}, {r};"),
    (12, "fma.rn.f32 {r}, {r}, {r}, {r};"),
    (8, "mul.f32 {r}, {r}, {r};"),
    (8, "add.f32 {r}, {r}, {r};"),
    (4, "max.f32 {r}, {r}, {r};"),
    (10, "fma.rn.f32x2 {d}, {d}, {d}, {d};"),
    (6, "mul.rn.f32x2 {d}, {d}, {d};"),
    (4, "mov.b64 {d}, {{{r}, {r}}};"),
    (3, "ld.shared.b32 {r}, [%place + {o4}];"),
    (3, "ld.shared.v4.b32 {{{r}, {r}, {r}, {r}}}, [%wide];"),
    (2, "st.shared.b32 [%place + {o4}], {r};"),
    (2, "st.shared.v4.b32 [%wide], {{{r}, {r}, {r}, {r}}};"),
    (2, "shfl.sync.bfly.b32 {r}, {r}, 8, 31, -1;"),
    (5, "cvt.rn.bf16x2.f32 {r}, {r}, {r};"),
    (2, "cvt.f32.bf16 {r}, {h};"),
    (2, "cvt.u16.u32 {h}, {r};"),
    (2, "ex2.approx.ftz.f32 {r}, {r};"),
)


def kernel(lines: int, seed: int = 0) -> str:
    """A kernel `mix` whose loop body has `lines` instructions."""
    rng = random.Random(seed)
    weights = [weight for weight, _ in MIX]
    body = []
    for (text,) in zip(rng.choices([text for _, text in MIX], weights, k=lines), strict=True):
        fresh = iter(rng.sample(range(REGISTERS), 8))
        pairs = iter(rng.sample(range(PAIRS), 4))
        while "{r}" in text:
            text = text.replace("{r}", f"%r{next(fresh)}", 1)
        while "{d}" in text:
            text = text.replace("{d}", f"%d{next(pairs)}", 1)
        text = text.replace("{h}", f"%h{rng.randrange(HALVES)}").replace("{o4}", str(128 * rng.randrange(4)))
        body.append(text.replace("{{", "{").replace("}}", "}"))
    init = "\n".join(f"mov.b32 %r{i}, 0x3f{i:06x};" for i in range(REGISTERS))
    init += "\n" + "\n".join(f"mov.b64 %d{i}, {{%r{i}, %r{i + 1}}};" for i in range(PAIRS))
    init += "\n" + "\n".join(f"cvt.u16.u32 %h{i}, %r{i};" for i in range(HALVES))
    fold = "\n".join(f"xor.b32 %r0, %r0, %r{i};" for i in range(1, REGISTERS))
    newline = "\n"
    return f"""{HEADER}
.visible .entry mix(.param .u64 out, .param .u32 count)
{{
.reg .b32 %r<{REGISTERS}>, %lane, %place, %wide, %n;
.reg .b64 %d<{PAIRS}>, %address;
.reg .b16 %h<{HALVES}>;
.reg .pred %p1, %more;
.shared .align 16 .b8 buffer[4096];
mov.u32 %lane, %tid.x;
mov.u32 %place, buffer;
mad.lo.s32 %wide, %lane, 16, %place;
mad.lo.s32 %place, %lane, 4, %place;
ld.param.u32 %n, [count];
{init}
setp.eq.s32 %p1, %lane, 3;
LOOP:
{newline.join(body)}
add.s32 %n, %n, -1;
setp.gt.s32 %more, %n, 0;
@%more bra LOOP;
{fold}
ld.param.u64 %address, [out];
mad.wide.u32 %address, %lane, 4, %address;
st.global.b32 [%address], %r0;
ret;
}}
"""


def instruction_rate(lines: int, seconds: float) -> float:
    """Full-warp instructions per second of one warp."""
    module = parse(kernel(lines))
    out = np.zeros(32, np.uint32)

    def run(count: int) -> tuple[int, float]:
        result = run_ptx(module, "mix", (1, 1, 1), (32, 1, 1), [out, count], threads=1)
        return result.counters.warp_instructions, result.seconds

    run(1)
    # Of 20 loops a third of the time is the launch's own: a number of loops from them is too small.
    executed, taken = run(2000)
    executed, taken = run(max(int(2000 * seconds / taken), 1))
    return executed / taken


def ready_times(lines: int) -> tuple[float, float]:
    """Seconds from PTX text to a kernel that has run: compiled now, and taken from the cache."""
    text = kernel(lines, seed=1)
    out = np.zeros(32, np.uint32)
    times = []
    with tempfile.TemporaryDirectory() as directory:
        before = os.environ.get("GDNBENCH_CACHE_DIR")
        os.environ["GDNBENCH_CACHE_DIR"] = directory
        try:
            for _ in range(2):
                gc.collect()  # else one of the runs has the collector's time, 0.1 s
                start = time.perf_counter()
                run_ptx(text, "mix", (1, 1, 1), (32, 1, 1), [out, 1], threads=1)
                times.append(time.perf_counter() - start)
        finally:
            if before is None:
                del os.environ["GDNBENCH_CACHE_DIR"]
            else:
                os.environ["GDNBENCH_CACHE_DIR"] = before
    return times[0], times[1]


def product_rate(name: str, k: int, seconds: float) -> float:
    """Multiply-adds per second of a 128 x 128 product."""
    form = FORMATS[name]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 1 << 14, (128, k)).astype(form.storage) for _ in range(2))
    c = np.zeros((128, 128), np.uint32)
    product = Product(form, form, "f32", k)
    multiply(product, "hardware", a, b, c)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        multiply(product, "hardware", a, b, c)
        count += 1
    return count * 128 * 128 * k / (time.perf_counter() - start)


def warpgroup(n: int, in_registers: bool) -> str:
    """A kernel `products`: a warpgroup that multiplies 64 x n x 16 bf16, eight at a time."""
    registers = n // 2
    d = ", ".join(f"%d{i}" for i in range(registers))
    a, transposed = ("{%a, %a, %a, %a}", "0") if in_registers else ("%da", "0, 0")
    multiply = (
        f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{d}}}, {a}, %db, %p, 1, 1, {transposed};"
    )
    # 128-byte swizzle, 1,024 bytes from one group of eight rows to the next.
    layout = 1 << 62 | 1024 >> 4 << 32 | 1 << 16
    newline = "\n"
    return f"""{HEADER.replace("sm_100a", "sm_90a")}
.visible .entry products(.param .u32 count)
{{
.reg .b32 %d<{registers}>, %a, %n, %place;
.reg .b64 %da, %db;
.reg .pred %p, %more;
.shared .align 1024 .b8 buffer[{128 * n}];
ld.param.u32 %n, [count];
mov.b32 %a, 0x3f803f80;
mov.u32 %place, %tid.x;
mad.lo.u32 %place, %place, 16, 1024;
FILL:
st.shared.v4.b32 [%place], {{%a, %a, %a, %a}};
add.u32 %place, %place, 2048;
setp.lt.u32 %more, %place, {1024 + 128 * n};
@%more bra FILL;
mov.b64 %da, {layout | 1024 >> 4};
mov.b64 %db, {layout | 1024 >> 4};
{newline.join(f"mov.b32 %d{i}, 0;" for i in range(registers))}
setp.eq.u32 %p, %n, %n;
bar.sync 0;
LOOP:
wgmma.fence.sync.aligned;
{newline.join([multiply] * 8)}
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
add.s32 %n, %n, -1;
setp.gt.s32 %more, %n, 0;
@%more bra LOOP;
ret;
}}
"""


def warpgroup_rate(n: int, in_registers: bool, seconds: float) -> float:
    """Multiply-adds per second of wgmma with everything around it: issue, waits, registers."""
    module = parse(warpgroup(n, in_registers))

    def run(count: int) -> tuple[int, float]:
        result = run_ptx(module, "products", (1, 1, 1), (128, 1, 1), [count], threads=1)
        return result.counters.mma_macs, result.seconds

    run(1)
    macs, taken = run(20)
    macs, taken = run(max(int(20 * seconds / taken), 1))
    return macs / taken


def served_record(repeats: int) -> None:
    """A prefill of one sequence: the launch's median seconds, and memory beyond the tensors at its peak."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from scripts.demo_flashinfer import gdn_prefill

    call = synthesise("gdn_prefill", seqlens=(TOKENS,), heads=HEADS, initial_state=True, gate="linear")
    given = {name: call.tensors[name] for name in ("q", "k", "v", "g", "beta", "cu_seqlens", "initial_state")}
    out = torch.empty_like(given["v"])
    state = torch.empty_like(given["initial_state"])

    def run() -> sim.Report:
        with sim.active() as session:
            gdn_prefill(**given, o=out, final_state=state)
        return session.reports[0]

    # A first run of 64 tokens compiles and loads everything, which is not the launch's memory.
    short = {n: t[:64] if t.shape[0] == TOKENS else t for n, t in given.items()}
    short["cu_seqlens"] = torch.tensor([0, 64], dtype=torch.int32)
    with sim.active():
        gdn_prefill(**short, o=out[:64], final_state=state)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reports = [run().launches[0] for _ in range(repeats)]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    seconds = statistics.median(report.seconds for report in reports)
    work = (
        f"{reports[0].warp_instructions / 1e6:.1f} M warp instructions, {reports[0].mma_macs / 1e9:.1f} GMAC"
    )
    cores = len(os.sched_getaffinity(0))
    print(f"served record  {seconds:8.1f} s on {cores} cores ({repeats} runs): {TOKENS} tokens, {work}")
    print(
        f"memory         {grown / 1024:8.0f} MiB more than before it, {worker / 1024:.0f} MiB a worker in all"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=2000, help="instructions of the loop body")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each rate is measured")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the served record")
    options = parser.parse_args()
    rate = instruction_rate(options.lines, options.seconds)
    print(
        f"instructions   {rate / 1e6:8.1f} M full-warp instructions/s, one core, {options.lines} in the loop"
    )
    first, cached = ready_times(2500)
    print(f"ready          {first:8.2f} s for 2,500 PTX lines, {cached:.2f} s from the cache")
    for name, k in (("bf16", 16), ("tf32", 8), ("e4m3", 32)):
        print(f"MMA {name:10} {product_rate(name, k, options.seconds / 2) / 1e9:8.2f} GMAC/s, one core")
    for n in (64, 128, 256):
        rates = [warpgroup_rate(n, registers, options.seconds / 2) / 1e9 for registers in (False, True)]
        print(f"wgmma m64n{n:<4} {rates[0]:8.2f} GMAC/s, one core, {rates[1]:.2f} with A in registers")
    if find_spec("flashinfer") is None:
        print("served record  needs pip install --no-deps flashinfer-python==0.7.2.post1", file=sys.stderr)
        sys.exit(Exit.CANNOT_RUN)
    served_record(options.repeats)


if __name__ == "__main__":
    main()
