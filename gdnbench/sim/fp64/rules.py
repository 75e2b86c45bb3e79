# SPDX-License-Identifier: Apache-2.0
"""Which rule an instruction has, and the count of shadows that its results lost."""

from __future__ import annotations

import numpy as np

from gdnbench.sim.fp64.arithmetic import Rule, arithmetic, conversion, is_intended_rounding
from gdnbench.sim.fp64.bit_arithmetic import bit_arithmetic
from gdnbench.sim.fp64.memory import ACCESSES
from gdnbench.sim.fp64.moves import MOVES, narrow, no_shadow
from gdnbench.sim.fp64.registers import KINDS, RegisterShadows
from gdnbench.sim.fp64.tensor import mma
from gdnbench.sim.interpreter.operation import Step, Thread
from gdnbench.sim.machine.engine_interface import Lanes
from gdnbench.sim.ptx.ir import Instruction, Register

# What these compute of a float is no float: a truth, a count, an address.
_NO_FLOATS = (
    "setp", "set", "testp", "cvta", "mapa", "getctarank", "isspacep", "popc", "clz", "vote", "match", "elect",
    "activemask", "bar.warp.sync", "trap", "brkpt",
)  # fmt: skip

REFUSED = ("wmma.mma", "wmma.load", "wmma.store")


def is_refused(ins: Instruction) -> bool:
    """Whether the instruction is a product that has no rule."""
    half_sum = ins.op == "wgmma.mma_async" and ins.types[0] != "f32"
    return ins.op in REFUSED or ins.has("block_scale") or half_sum


def rule_of(ins: Instruction) -> Rule | None:
    """The rule of an instruction that the engine executes; None if nothing that it writes can have had, or
    get, a shadow."""
    if ins.op in ACCESSES:
        return ACCESSES[ins.op](ins) or no_shadow(ins)
    dests = [one for one in ins.written() if isinstance(one, Register) and one.type != "pred"]
    if not dests:
        return None
    if ins.op in _NO_FLOATS:
        return no_shadow(ins)
    if ins.op in MOVES:
        return MOVES[ins.op](ins)
    if ins.op == "cvt":
        return _conversion(ins)
    if ins.op == "mma":
        product = mma(ins) if ins.types[0] in ("f32", "f16") else None
        return no_shadow(ins) if product is None else product
    computed = arithmetic(ins) if ins.types and ins.types[0] in KINDS else None
    return _counted(ins, bit_arithmetic(ins)) if computed is None else computed


def _conversion(ins: Instruction) -> Rule:
    rule = conversion(ins)
    if rule is not None:
        return rule
    target, source = ins.types
    if target[0] in "ub" and source[0] in "ub" and not ins.has("sat"):
        return narrow(ins)
    return no_shadow(ins) if is_intended_rounding(ins) else _counted(ins, no_shadow(ins))


def _counted(ins: Instruction, rule: Rule) -> Rule:
    """`rule`, with a count of the lanes in which a source had a shadow and no result has one. A result of
    bytes that are a source's or zero is a part of it, which may be one without a shadow."""
    sources = [one for source in ins.sources for one in getattr(source, "elements", (source,))]
    registers = [one.index for one in sources if isinstance(one, Register) and one.type != "pred"]
    dests = [one.index for one in ins.written() if isinstance(one, Register) and one.type != "pred"]
    pc = ins.pc

    def counting(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        live = [index for index in registers if shadows.shadowed[index]]
        if not live:
            rule(thread, shadows, lanes, step)
            return
        had = np.logical_or.reduce([shadows.live(index).any(axis=1) for index in live]) & lanes
        before = [shadows.bytes[index].copy() for index in live]
        rule(thread, shadows, lanes, step)
        for dest in dests:
            after = shadows.bytes[dest]
            for data in before:
                had &= ~((after == data) | (after == 0)).all(axis=1)
            if shadows.shadowed[dest]:
                had &= ~shadows.live(dest).any(axis=1)
        count = int(had.sum())
        if count:
            thread.cta.launch.lost_shadows[pc] += count

    return counting
