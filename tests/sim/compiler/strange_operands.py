# SPDX-License-Identifier: Apache-2.0
"""Instructions with operands that they do not have, given to the parser and to both engines. Run as a
program, it prints the errors that are none of the simulator's. It compiles and runs every EVERYth statement:

    python -m tests.sim.compiler.strange_operands SEED COUNT EVERY

It prints each statement before it is compiled, so that the last line of a process that died names the
statement that killed it.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import traceback

import llvmlite.binding as llvm

from gdnbench.sim.compiler.blocks import find_blocks, is_service
from gdnbench.sim.compiler.fragments import direct
from gdnbench.sim.compiler.kernel import translate
from gdnbench.sim.compiler.layout import plan_layout
from gdnbench.sim.compiler.runtime_calls import ServiceMaker
from gdnbench.sim.errors import SimError
from gdnbench.sim.ptx.forms import VECTORS, Row
from gdnbench.sim.ptx.instructions import ROWS
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import run_ptx

ROW_LIST = tuple(itertools.chain.from_iterable(ROWS.values()))
REGISTERS = ("%p1", "%h1", "%r1", "%r2", "%d1", "%d2", "%q1", "%w1", "%b1", "%f1")
SCALARS = (*REGISTERS, "_")
CONSTANTS = ("0", "1", "-1", "32", "0xFFFFFFFFFFFFFFFF", "1.5", "0f3F800000", "0d3FF0000000000000")
OTHERS = ("!%p1", "!%r1", "%tid.x", "%clock64", "%laneid", "ours", "mine+4", "table-8", "data", "L")
ADDRESSES = (
    *("[%r1]", "[%d1]", "[%r1+-4]", "[ours]", "[ours+-4096]", "[mine]", "[table+8]", "[data]", "[data+-8]"),
    *("[0]", "[-1]", "[%h1]", "[%p1]", "[]", "[L]", "[0xFFFFFFFFFFFFFFFF]", "[%tid.x]"),
)
TENSORS = ("[%d1, {%r1}]", "[%d1, {%r1, 0}]", "[table, {%r1, %h1, -5}]", "[%d1, {}]", "[%d1, %r1]")


def statement(row: Row, generator: random.Random) -> str:
    """The opcode of the row with one of its spellings, and operands of which some are strange."""
    suffixes: list[str] = []
    for group in row.groups:
        if group.optional and generator.random() < 0.6:
            continue
        suffixes += [generator.choice(sorted(part)) for part in group.parts]
    types = [generator.choice(sorted(names)) for names in row.types]
    vec = next((VECTORS[name] for name in suffixes if name in VECTORS), 1)
    form = row.match(tuple(name for name in suffixes if name not in VECTORS), tuple(types), vec)
    fewest, most = form.sources if form is not None else (1, 3)
    kinds = form.addresses if form is not None else ()
    operands = [_destination(generator, vec) for _ in range(0 if row.dests == 0 else 1)]
    for index in range(generator.randint(fewest, most)):
        kind = kinds[index] if index < len(kinds) else ""
        pool = {"address": ADDRESSES, "tensor": TENSORS}.get(kind)
        operands.append(generator.choice(pool) if pool else _plain(generator, vec))
    if operands and generator.random() < 0.7:
        operands[generator.randrange(len(operands))] = _strange(generator)
    guard = generator.choice(("", "", "", "@%p1 ", "@!%p1 "))
    return f"{guard}{'.'.join((row.op, *suffixes, *types))} {', '.join(operands)};"


def _vector(generator: random.Random, count: int, pool: tuple[str, ...]) -> str:
    return "{" + ", ".join(generator.choice(pool) for _ in range(count)) + "}"


def _destination(generator: random.Random, vec: int) -> str:
    one = generator.choice(REGISTERS)
    if vec > 1:
        return "{" + ", ".join([one] * vec) + "}"
    return one if generator.random() < 0.8 else generator.choice(("_", f"{one}|%p2"))


def _plain(generator: random.Random, vec: int) -> str:
    if vec > 1:
        return "{" + ", ".join([generator.choice(REGISTERS)] * vec) + "}"
    return generator.choice((*REGISTERS, *CONSTANTS[:4]))


def _strange(generator: random.Random) -> str:
    match generator.randrange(6):
        case 0:
            return generator.choice(OTHERS)
        case 1:
            return generator.choice(CONSTANTS)
        case 2:
            return generator.choice((*ADDRESSES, *TENSORS))
        case 3:
            count = generator.choice((1, 2, 3, 4, 8, 16))
            return _vector(generator, count, (*SCALARS, *CONSTANTS[:2], "%tid.x"))
        case 4:
            return "|".join(generator.choices(SCALARS, k=2))
        case _:
            return generator.choice(SCALARS)


def program(line: str, target: str) -> str:
    return f""".version 8.8
.target {target}
.address_size 64
.global .align 16 .b8 table[256];
.visible .entry k(.param .align 16 .b8 data[64]) {{
.reg .pred %p1, %p2;
.reg .b8 %b1;
.reg .b16 %h1;
.reg .b32 %r1, %r2;
.reg .f16x2 %q1;
.reg .f32 %f1;
.reg .b64 %d1, %d2;
.reg .f64 %w1;
.shared .align 128 .b8 ours[4096];
.local .align 16 .b8 mine[64];
mov.u32 %r1, ours;
mov.u32 %r2, %tid.x;
mov.u64 %d1, table;
cvt.u64.u32 %d2, %r2;
setp.ne.u32 %p1, %r2, 77;
setp.ne.u32 %p2, %r2, 5;
cvt.u16.u32 %h1, %r2;
cvt.u8.u32 %b1, %r2;
mov.b32 %q1, %r2;
mov.b32 %f1, %r2;
mov.b64 %w1, %d2;
{line}
L: ret;
}}
"""


def escaped(text: str, *, run: bool) -> list[str]:
    """The errors that are none of the simulator's, of the parser and both engines."""
    found = []
    try:
        module = parse(text)
    except SimError:
        return []
    except Exception:
        return ["parser: " + traceback.format_exc()]

    def interpreted() -> None:
        run_ptx(module, "k", (1, 1, 1), (32, 1, 1), [bytes(64)], engine="interpreter", threads=1)

    def compiled() -> None:
        if run:
            run_ptx(module, "k", (1, 1, 1), (32, 1, 1), [bytes(64)], threads=1)
            return
        kernel = module.kernels["k"]
        blocks = find_blocks(kernel)
        layout = plan_layout(kernel, blocks)
        text, translated = translate(kernel, blocks, layout)
        llvm.parse_assembly(text).verify()
        maker = ServiceMaker(kernel, layout, translated.symbol_slots)
        for ins in kernel.instructions:
            if is_service(ins):
                direct(maker.make(ins))

    for name, act in (("interpreter", interpreted), ("compiled", compiled)):
        try:
            act()
        except SimError as error:
            if "\n" in str(error) and "deadlock" not in str(error):
                found.append(f"{name}: more than one line: {error}")
        except Exception:
            found.append(f"{name}: " + traceback.format_exc())
    return found


def main(seed: int, count: int, every: int) -> None:
    generator = random.Random(seed)
    for number in range(count):
        row = generator.choice(ROW_LIST)
        line = statement(row, generator)
        target = "sm_90a" if row.op.startswith("wgmma") else "sm_100a"
        print(json.dumps({"statement": line}), flush=True)
        for error in escaped(program(line, target), run=number % every == 0):
            print(json.dumps({"statement": line, "escaped": error}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
