# SPDX-License-Identifier: Apache-2.0
"""Control flow of a kernel: the registers of an operand, the successors of an instruction, dominators and
postdominators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gdnbench.sim.ptx.forms import Flow
from gdnbench.sim.ptx.ir import (
    Address,
    Instruction,
    Kernel,
    Negated,
    Operand,
    Pair,
    Register,
    Target,
    Targets,
    TensorAddress,
    Vector,
)


def registers_of(operand: Operand | None) -> Iterator[Register]:
    """The registers that an operand names."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Negated):
        yield operand.register
    elif isinstance(operand, Address):
        yield from registers_of(operand.base)
    elif isinstance(operand, TensorAddress):
        yield from registers_of(operand.descriptor)
        for coordinate in operand.coordinates:
            yield from registers_of(coordinate)
    elif isinstance(operand, Vector):
        for element in operand.elements:
            yield from registers_of(element)
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)


def targets_of(ins: Instruction) -> tuple[Target, ...]:
    """The targets of a branch; none for other instructions."""
    if ins.form.flow is not Flow.BRANCH:
        return ()
    target = ins.sources[-1]
    if isinstance(target, Targets):
        return target.targets
    assert isinstance(target, Target)
    return (target,)


def successors(kernel: Kernel, ins: Instruction) -> list[int]:
    """The pcs that may follow `ins`; the kernel's end is not among them."""
    following = [ins.pc + 1] if ins.pc + 1 < len(kernel.instructions) else []
    if ins.form.flow is Flow.BRANCH:
        pcs = dict.fromkeys(target.pc for target in targets_of(ins))
        inside = [pc for pc in pcs if pc < len(kernel.instructions)]
        return inside + (following if ins.guard else [])
    if ins.form.ends_thread:
        return following if ins.guard else []
    return following


def dominators(kernel: Kernel) -> list[int]:
    """By pc, the last earlier instruction on every path from the start; -1 for unreachable instructions."""
    after = [successors(kernel, ins) for ins in kernel.instructions]
    return _immediate(0, after, _turned(after))


def postdominators(kernel: Kernel, *, trapped: bool = True) -> list[int]:
    """By pc, the first later instruction on every path to the end: the number of instructions if that is the
    end itself, -1 if no path reaches the end. Whether a trap is an end is `trapped`."""
    end = len(kernel.instructions)
    after = [successors(kernel, ins) for ins in kernel.instructions]
    for pc, ins in enumerate(kernel.instructions):
        ends = ins.form.ends_thread and (trapped or ins.form.flow is not Flow.TRAP)
        if ends or pc == end - 1:
            after[pc] = [*after[pc], end]
    after.append([])
    return _immediate(end, _turned(after), after)[:end]


def _turned(after: Sequence[Sequence[int]]) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in after]
    for node, following in enumerate(after):
        for other in following:
            before[other].append(node)
    return before


def _immediate(root: int, after: Sequence[Sequence[int]], before: Sequence[Iterable[int]]) -> list[int]:
    """Immediate dominators by Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm"."""
    order = postorder(root, lambda node: after[node])
    rank = {node: index for index, node in enumerate(order)}
    found = [-1] * len(after)
    found[root] = root
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            best = -1
            for other in before[node]:
                if found[other] < 0:
                    continue
                if best < 0:
                    best = other
                    continue
                one = other
                while one != best:
                    if rank[one] < rank[best]:
                        one = found[one]
                    else:
                        best = found[best]
            if found[node] != best:
                found[node], changed = best, True
    return found


def postorder(root: int, after: Callable[[int], Sequence[int]]) -> list[int]:
    """All nodes reachable from `root`, each after its successors."""
    order: list[int] = []
    seen = {root}
    stack = [(root, iter(after(root)))]
    while stack:
        node, rest = stack[-1]
        following = next((other for other in rest if other not in seen), None)
        if following is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(after(following))))
    return order
