# SPDX-License-Identifier: Apache-2.0
"""The rows of the instruction table against ptxas 13.0 (PTX ISA 9.0), which knows nothing of them."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx import engine_instructions, isa, machine_instructions
from gdnbench.sim.ptx.forms import TYPES, Traits
from gdnbench.sim.ptx.instructions import ROWS
from gdnbench.sim.ptx.literals import width_of
from tests.sim.instructions.spellings import OPCODES, Case, cases

HEAD = """.version 9.0
.target sm_100a
.address_size 64
.entry k() {
.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %l<9>;
"""
NAMES = {1: "%p", 16: "%h", 32: "%r", 64: "%l"}
SEED = 22
CHANGED = 40  # spellings of an opcode with one suffix more, less or another
TYPES_SORTED = sorted(TYPES)
PTXAS = shutil.which("ptxas")
ptxas = pytest.mark.skipif(PTXAS is None, reason="no ptxas")
# ptxas wants other registers for the eight bits of these than the engines, which have none of that width.
NARROW = ("s8", "u8", "e2m1x2", "e2m1x4", "e4m3x4", "e5m2x4", "e2m3x4", "e3m2x4")
# PTX ISA 9.1 and 9.2 have them.
LATER = re.compile(
    r"sub\.[su]16x2|(abs|neg)(\.ftz)?\.f32x2|cvt\..*\.e\dm\dx2\.b?f16x2|cvt\..*ue8m0x2.*|cvt.pack.*"
)
# ptxas takes them, the ISA has no such form.
BEYOND = re.compile(r"rcp\..*ftz.*\.f64|fma\..*b?f16(x2)?|testp\.f(32|64)")


def _statement(case: Case) -> str:
    sources = [f"{NAMES[width]}{place}" for place, width in enumerate(case.sources, 1)]
    both = case.op == "lop3" and case.mods
    return case.text(f"{NAMES[case.dest]}0" + ("|%p5" if both else ""), sources)


def _refused(statements: list[str], folder: Path) -> dict[int, str]:
    """What ptxas says against statements, by place."""
    path = folder / "rows.ptx"
    path.write_text(HEAD + "\n".join(statements) + "\nret;\n}\n")
    command = [str(PTXAS), "-arch", "sm_100a", "-o", "/dev/null", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    first = HEAD.count("\n") + 1
    lines = re.findall(r"line (\d+); (?:error|fatal) *: (.*)", found.stdout + found.stderr)
    assert lines or not found.returncode, found.stderr
    return {int(line) - first: said for line, said in lines}


def test_no_two_groups_of_rows_have_the_same_traits() -> None:
    """One of them would hide the other."""
    for module in (engine_instructions, machine_instructions):
        text = Path(str(module.__file__)).read_text()
        assert text.count(f"    {Traits.__name__}(") == len(module.TABLE)


@ptxas
def test_ptxas_takes_every_row_with_every_type(tmp_path: Path) -> None:
    every = [case for op in OPCODES for case in cases(op)]
    refused = _refused([_statement(case) for case in every], tmp_path)
    taken = {(case.op, case.types, case.sources) for i, case in enumerate(every) if i not in refused}
    for i, said in refused.items():
        case = every[i]
        if {*case.types} & {*NARROW} or LATER.fullmatch(case.opcode):
            continue
        assert (case.op, case.types, case.sources) in taken, f"{case.opcode}: {said}"


def _changed(case: Case, generator: random.Random) -> Case:
    """The case with a suffix more, less or in another's place, or with another type of the same width."""
    known = sorted(frozenset[str]().union(*(row.suffixes for row in ROWS[case.op])))
    mods, types = list(case.mods), list(case.types)
    place = generator.randrange(len(mods) + 1)
    change = generator.choice(("more", "less", "other", "type"))
    if change == "type":
        at = generator.randrange(len(types))
        types[at] = generator.choice([t for t in TYPES_SORTED if width_of(t) == width_of(types[at])])
    elif change == "more" and known:
        mods.insert(place, generator.choice(known))
    elif place < len(mods):
        mods[place : place + 1] = [] if change == "less" else [generator.choice(known)]
    return Case(case.form, tuple(mods), tuple(types), case.dest, case.sources)


@ptxas
def test_ptxas_refuses_what_is_no_row(tmp_path: Path) -> None:
    generator = random.Random(SEED)
    strange: dict[str, Case] = {}
    for op in OPCODES:
        every = list(cases(op))
        for case in (_changed(generator.choice(every), generator) for _ in range(CHANGED)):
            try:
                isa.forms(op, case.mods, case.types, 1)
            except UnsupportedError:
                if len({*case.mods}) == len(case.mods) and not BEYOND.fullmatch(case.opcode):
                    strange[_statement(case)] = case
    refused = _refused([*strange], tmp_path)
    assert len(strange) > 500
    assert [statement for i, statement in enumerate(strange) if i not in refused] == []
