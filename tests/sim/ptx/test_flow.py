# SPDX-License-Identifier: Apache-2.0
"""The flow of a kernel, held against what its paths say one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from gdnbench.sim.ptx.flow import dominators, postdominators, successors
from gdnbench.sim.ptx.ir import Kernel
from gdnbench.sim.ptx.parser import parse

LENGTH = 14


def drawn(seed: int) -> Kernel:
    """Random branches, some under a guard, with a few exits."""
    generator = random.Random(seed)
    lines = []
    for number in range(LENGTH):
        target = f"L{generator.randrange(LENGTH)}"
        choices = ["add.s32 %r1, %r1, 1;", f"@%p1 bra {target};", f"bra {target};", "@%p1 exit;", "ret;"]
        lines.append(f"L{number}: {generator.choices(choices, (4, 4, 1, 1, 1))[0]}")
    body = "\n".join(lines)
    header = ".version 8.8\n.target sm_100a\n.address_size 64\n"
    registers = ".reg .pred %p<2>;\n.reg .b32 %r<2>;"
    return parse(f"{header}.entry k()\n{{\n{registers}\n{body}\nret;\n}}\n").kernels["k"]


def reached(after: Sequence[Sequence[int]], start: int, without: int | None) -> set[int]:
    """All that a path from `start` meets which does not go through `without`."""
    found: set[int] = set()
    left = [start]
    while left:
        node = left.pop()
        if node not in found and node != without:
            found.add(node)
            left += after[node]
    return found


@pytest.mark.parametrize("seed", range(40))
def test_dominators(seed: int) -> None:
    """One instruction dominates another if nothing reaches that one without it; of those that do, the
    immediate one is dominated by all others."""
    kernel = drawn(seed)
    after = [successors(kernel, ins) for ins in kernel.instructions]
    found = dominators(kernel)
    everything = reached(after, 0, None)
    for node in range(len(after)):
        if node not in everything:
            assert found[node] == -1
            continue
        strict = {other for other in everything - {node} if node not in reached(after, 0, other)}
        if node == 0:
            assert found[node] == 0
        else:
            assert found[node] in strict
            assert all(found[node] not in reached(after, 0, other) for other in strict - {found[node]})


@pytest.mark.parametrize("seed", range(40))
def test_postdominators(seed: int) -> None:
    """The same of the paths to the end, which is one place behind the last instruction."""
    kernel = drawn(seed)
    end = len(kernel.instructions)
    after = [list(successors(kernel, ins)) for ins in kernel.instructions]
    for pc, ins in enumerate(kernel.instructions):
        if ins.op in ("ret", "exit") or pc == end - 1:
            after[pc].append(end)
    after.append([])
    found = postdominators(kernel)
    for node in range(end):
        ways = reached(after, node, None)
        if end not in ways:
            assert found[node] == -1
            continue
        strict = {other for other in ways - {node} if end not in reached(after, node, other)}
        assert found[node] in strict
        for other in strict - {found[node]}:
            assert end not in reached(after, found[node], other)
