# SPDX-License-Identifier: Apache-2.0
"""Kernels of which some words are exchanged, run by both engines, checked and unchecked. Run as a program, it
prints the errors that are none of the simulator's. The compiled engine runs every EVERYth kernel:

    python -m tests.sim.compiler.damaged_kernels SEED COUNT EVERY

It prints each kernel before it runs, so that the last line of a process that died has the kernel that killed
it.
"""

from __future__ import annotations

import json
import random
import re
import sys
import traceback

import numpy as np

from gdnbench.sim.errors import SimError
from gdnbench.sim.run import run_ptx
from tests.sim.fault_cases import GLOBAL_BYTES, PAIRS, USES, ptx, used_early

KERNELS = (*(text for pair in PAIRS for text in pair.texts()), *(ptx(used_early(name)) for name in USES))
BODY = "mov.u32 %r0, %tid.x;"  # what stands before it is not damaged
TOKEN = re.compile(r"[%\w.:$]+|\S")
_WORDS = """
    0 1 -1 7 0xFFFFFFFF 4096 0x7FFFFFFFFFFFFFFF %r1 %r3 %d0 %d3 %p1 %h1 %f1 %tid.x buffer barrier columns data
    ready _ !%p1 @%p1 .b64 .u8 shared::cta global tcgen05 , ; [ ] { } ret; [%r1] [%d0] {%r0,%r1}
    {%r0,%r1,%r2,%r3}"""
WORDS = _WORDS.split()
INSTRUCTIONS, SECONDS = 200_000, 60  # damage makes loops that never end


def damaged(generator: random.Random) -> str:
    """A kernel with one to three words replaced by others, by words of its own or by nothing."""
    text = generator.choice(KERNELS)
    start = text.index(BODY)
    for _ in range(generator.randint(1, 3)):
        spans = [match.span() for match in TOKEN.finditer(text, start)]
        first, last = generator.choice(spans)
        other = slice(*generator.choice(spans))
        new = generator.choice((*generator.choices(WORDS, k=3), text[other], ""))
        text = f"{text[:first]}{new} {text[last:]}"
    return text


def escaped(text: str, engine: str, threads: int, *, check: bool) -> str:
    """The traceback of an error that is none of the simulator's; "" if there is none."""
    params = [np.ones(GLOBAL_BYTES // 4, np.float32)]
    bounds = {"max_instructions": INSTRUCTIONS, "timeout": SECONDS}
    try:
        run_ptx(
            text, "k", (1, 1, 1), (threads, 1, 1), params, engine=engine, check=check, threads=1, **bounds
        )  # type: ignore[arg-type]
    except SimError:
        return ""
    except Exception:
        return f"{engine}: {traceback.format_exc()}"
    return ""


def main(seed: int, count: int, every: int) -> None:
    generator = random.Random(seed)
    for number in range(count):
        text, threads = damaged(generator), generator.choice((32, 40, 64))
        print(json.dumps({"kernel": text}), flush=True)
        for engine in ("interpreter", "compiled")[: 1 + (number % every == 0)]:
            for check in (False, True):
                if found := escaped(text, engine, threads, check=check):
                    print(json.dumps({"kernel": text, "escaped": found}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
