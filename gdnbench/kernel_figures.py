# SPDX-License-Identifier: Apache-2.0
"""What a compiled kernel takes of the hardware, known without a GPU, and how it compares with a budget.

Registers and stack are what the cubin's own attributes say; spills are the loads and stores of local memory
in its machine code; threads and dynamic shared memory are what the kernel's host code asks for, run against a
simulated CUDA runtime; tensor memory and instruction counts are read from the PTX. Source lines, which depend
on where the files lie, count neither as PTX nor as cubin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.sim.errors import ExportError, UnsupportedError
from gdnbench.sim.host import DTYPES, NO_CONTENTS, Elf, Extent, TensorType, capture_launches, tensor_type
from gdnbench.sim.ptx import Immediate, Instruction, Kernel, Register
from gdnbench_kernels.artifacts import STREAM
from gdnbench_kernels.compiling import Program
from gdnbench_kernels.plan import SMEM_LIMIT, TMEM_COLUMNS

TMA = (
    "cp.async.bulk",
    "cp.async.bulk.tensor",
    "cp.async.bulk.prefetch",
    "cp.async.bulk.prefetch.tensor",
    "cp.reduce.async.bulk",
    "cp.reduce.async.bulk.tensor",
)
EXAMPLE_EXTENT = 64
"""What an open extent is for the example launch, which no figure depends on but by mistake."""

TIME_FACTOR, TIME_FLOOR = 10, 60.0
"""Compile time is the machine's too: over budget is ten times the budget's, and a minute at least."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One kernel. In each figure less is better."""

    name: str
    registers: int
    spills: int
    stack: int
    smem: int
    tmem_columns: int
    threads: int
    cubin_bytes: int
    ptx_lines: int
    tcgen05_instructions: int
    tma_instructions: int
    compile_seconds: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


NUMBERS = tuple(field.name for field in fields(Figures) if field.name != "name")


def figures(program: Program) -> Figures:
    """Of a program that launches one kernel; UnsupportedError for another, ExportError for a cubin that does
    not say what is asked."""
    call = capture_launches(program, example_arguments(program))
    if len(call.requests) != 1 or len(call.module.kernels) != 1:
        raise UnsupportedError(f"figures of {program.name}, which launches {len(call.requests)} kernels")
    request, kernel = call.requests[0], call.module.kernels[call.requests[0].entry]
    cubin = Elf.parse(program.cubin)
    registers, stack = cubin.registers(kernel.name), cubin.stack(kernel.name)
    if registers is None or stack is None:
        raise ExportError(f"the cubin of {program.name} does not say its registers and stack")
    ops = [instruction.op for instruction in kernel.instructions]
    return Figures(
        name=program.name,
        registers=registers,
        spills=cubin.local_accesses(),
        stack=stack,
        smem=request.shared_bytes + kernel.shared_size,
        tmem_columns=tmem_columns(kernel),
        threads=math.prod(request.block),
        cubin_bytes=sum(
            section.size
            for section in cubin.sections
            if section.kind != NO_CONTENTS and "debug" not in section.name
        ),
        ptx_lines=ptx_lines(program.ptx),
        tcgen05_instructions=sum(op.startswith("tcgen05.") for op in ops),
        tma_instructions=sum(op in TMA for op in ops),
        compile_seconds=round(program.compile_seconds, 3),
    )


def example_arguments(program: Program) -> list[Any]:
    """Arguments that a program takes: zeros, and 1 for numbers."""
    return [_example(parameter.type) for parameter in program.parameters if parameter.type != STREAM]


def ptx_lines(ptx: str) -> int:
    """Lines that say something about the kernel: no blanks, comments, or lines of the source."""
    lines = map(str.strip, ptx.splitlines())
    return sum(bool(line) and not line.startswith(("//", ".loc", ".file")) for line in lines)


def tmem_columns(kernel: Kernel) -> int:
    """Columns that a kernel allocates: all its tcgen05.alloc together."""
    return sum(
        _constant(kernel, instruction)
        for instruction in kernel.instructions
        if instruction.op == "tcgen05.alloc"
    )


def _constant(kernel: Kernel, alloc: Instruction) -> int:
    """The number of columns, an immediate or a register that is set to one."""
    columns = alloc.sources[-1]
    if isinstance(columns, Register):
        writers = [other for other in kernel.instructions if columns in other.written()]
        columns = writers[0].sources[0] if len(writers) == 1 and writers[0].op == "mov" else columns
    if not isinstance(columns, Immediate):
        raise UnsupportedError("tcgen05.alloc of a number of columns that is computed", alloc.place)
    return columns.bits


def figures_in(budget: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The figures of a budget by kernel; BadInputError if it is none."""
    recorded: dict[str, dict[str, float]] = {}
    try:
        for entry in budget["kernels"]:
            recorded[entry["name"]] = {name: entry[name] for name in NUMBERS}
    except (KeyError, TypeError) as error:
        raise BadInputError(f"the budget is no output of gdnbench compile --json: {error!r}") from None
    for kernel, numbers in recorded.items():
        for name, number in numbers.items():
            if type(number) not in (int, float) or not math.isfinite(number):
                raise BadInputError(f"the budget's {name} of {kernel} is {number!r}, which is no number")
    return recorded


def problems(found: Sequence[Figures], budget: Mapping[str, Any]) -> list[str]:
    """What is over the hardware's limits, spilled, or worse than in the budget, which is `gdnbench compile
    --json`'s object of an earlier state; old and new figure in each line."""
    recorded = figures_in(budget)
    lines = [line for kernel in found for line in limits(kernel)]
    for kernel in found:
        if kernel.name not in recorded:
            lines.append(f"{kernel.name} is not in the budget")
            continue
        for name in NUMBERS:
            old, new = recorded[kernel.name][name], getattr(kernel, name)
            allowed = max(TIME_FLOOR, TIME_FACTOR * old) if name == "compile_seconds" else old
            if new > allowed:
                lines.append(f"{kernel.name}: {name} {old} -> {new}")
    gone = recorded.keys() - {kernel.name for kernel in found}
    return lines + [f"{name} is in the budget, and is not compiled" for name in sorted(gone)]


def limits(kernel: Figures) -> list[str]:
    """What no kernel may have."""
    rules = (
        ("spills", 0),
        ("stack", 0),
        ("smem", SMEM_LIMIT),
        ("tmem_columns", TMEM_COLUMNS),
    )
    return [
        f"{kernel.name}: {name} {getattr(kernel, name)}, over the limit of {limit}"
        for name, limit in rules
        if getattr(kernel, name) > limit
    ]


def _example(type_: str | None) -> Any:
    """A value that a parameter of that type takes."""
    if type_ is None:
        return None
    tensor = tensor_type(type_)
    return 1 if tensor is None else _example_tensor(tensor)


def _example_tensor(type_: TensorType) -> Tensor:
    """Contiguous where the strides are open."""
    shape = [_size(extent, EXAMPLE_EXTENT) for extent in type_.shape]
    strides: list[int] = []
    for extent, inner in zip(reversed(type_.strides), [1, *reversed(shape)], strict=False):
        strides.insert(0, _size(extent, inner * (strides[0] if strides else 1)))
    elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    dtype = DTYPES[type_.dtype][0]
    # Aligned by hand: torch aligns to 64 bytes, a type may ask for more.
    slack = max(type_.align // dtype.itemsize, 1)
    try:
        memory = torch.zeros(elements + slack, dtype=dtype)
    except (RuntimeError, MemoryError):  # what torch says of more memory than there is
        raise UnsupportedError(
            f"figures of a kernel that takes tensors of {elements:.3g} elements and more: no memory for one"
        ) from None
    first = -memory.data_ptr() % max(type_.align, 1) // dtype.itemsize
    return memory[first:].as_strided(shape, strides)


def _size(extent: Extent, wanted: int) -> int:
    """The fixed size, or the multiple of the divisor that is next to `wanted` from above."""
    return extent.value if extent.value is not None else -(-wanted // extent.divisor) * extent.divisor
