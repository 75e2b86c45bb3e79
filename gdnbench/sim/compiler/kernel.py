"""Compiles a kernel from IR to loaded machine code: translates every block, then compiles it or takes it from
the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gdnbench.sim.compiler import (
    approximate,
    atomics,
    compare,
    control,
    convert,
    floating,
    integer,
    logic,
    matrix,
    memory,
    native,
    runtime,
    warp,
    wmma,
)
from gdnbench.sim.compiler.blocks import Blocks, find_blocks, is_service
from gdnbench.sim.compiler.dispatch import dispatcher
from gdnbench.sim.compiler.emit import Library
from gdnbench.sim.compiler.layout import ALIGN, Layout, plan_layout
from gdnbench.sim.compiler.native import Level
from gdnbench.sim.compiler.optimiser import Optimiser
from gdnbench.sim.compiler.parallel import processors
from gdnbench.sim.compiler.runtime_calls import enter_service
from gdnbench.sim.compiler.shadow_registers import Shadows
from gdnbench.sim.compiler.shadow_registers import plan_shadows as plan_shadows
from gdnbench.sim.compiler.translator import Program, Translate, Translator
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx.ir import Kernel, Module


def _table() -> dict[str, Translate]:
    return {
        **integer.TABLE,
        **floating.TABLE,
        **approximate.TABLE,
        **compare.TABLE,
        **convert.TABLE,
        **logic.TABLE,
        **memory.TABLE,
        **atomics.TABLE,
        **matrix.TABLE,
        **wmma.TABLE,
        **warp.TABLE,
        **control.TABLE,
    }


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """A kernel ready to run. `symbols` are the state offsets of module variables' addresses, `traffic` the
    names of the byte counters, `skips` the records of skipped faults as (offset in the state, pc, code).
    `optimiser` is None for code that is the best already."""

    kernel: Kernel
    blocks: Blocks
    layout: Layout
    loaded: native.Loaded
    symbols: dict[str, int]
    traffic: tuple[str, ...]
    seen: dict[int, int]
    shadows: Shadows | None = None
    skips: tuple[tuple[int, int, int], ...] = ()
    optimiser: Optimiser | None = None


def translate(
    kernel: Kernel,
    blocks: Blocks,
    layout: Layout,
    shadows: Shadows | None = None,
    *,
    keep_going: bool = False,
) -> tuple[str, Program]:
    """The LLVM IR of a kernel as one module."""
    (text,), program = translate_parts(kernel, blocks, layout, shadows, 1, keep_going=keep_going)
    return text, program


def translate_parts(
    kernel: Kernel,
    blocks: Blocks,
    layout: Layout,
    shadows: Shadows | None,
    most: int,
    *,
    keep_going: bool = False,
) -> tuple[list[str], Program]:
    """The LLVM IR of a kernel as up to `most` modules of about equal size, which can be compiled separately.
    The first has the dispatcher."""
    library = Library(dict(runtime.DECLARATIONS))
    program = Program(kernel, blocks, layout, library, shadows, keep_going=keep_going)
    table = _table()
    for ins in kernel.instructions:
        if is_service(ins) and ins.op not in table:
            table[ins.op] = enter_service
    functions = [Translator(program, block).translate(table) for block in blocks.blocks]
    count = max(min(most, sum(map(len, functions)) // PART_BYTES), 1)
    groups = _groups(functions, count)
    first, *others = groups
    declared = "".join(f"declare i32 @block{i}(ptr, i32)\n" for i in range(len(first), len(functions)))
    texts = [_module(library, [dispatcher(blocks), declared, *first])]
    # The dispatcher's module finds them by name.
    texts += [
        _module(library, [one.replace("define internal i32 ", "define i32 ", 1) for one in group])
        for group in others
    ]
    return texts, program


PART_BYTES = 128 << 10
"""The least text of a module that is compiled by itself. A process for it takes some 20 ms, LLVM 80 ms."""


def _groups(functions: Sequence[str], count: int) -> list[list[str]]:
    """The functions in `count` runs of about equal size."""
    share = sum(map(len, functions)) / count
    groups: list[list[str]] = [[] for _ in range(count)]
    size = 0
    for function in functions:
        groups[min(int(size / share), count - 1)].append(function)
        size += len(function)
    return groups


def _module(library: Library, functions: Sequence[str]) -> str:
    """A module of these functions with all that they call."""
    own = "\n".join((ATTRIBUTES, *library.declarations.values(), *functions))
    text = "\n".join((own, *library.called_by(own)))
    return "\n".join((text, *runtime.support(text)))


# Vectors of 512 bits; on CPUs without them LLVM splits them. Functions with #1 change the CPU's rounding
# mode; LLVM must not move arithmetic across them.
_VECTORS = '"prefer-vector-width"="512" "min-legal-vector-width"="512"'
ATTRIBUTES = (
    f'attributes #0 = {{ nounwind {_VECTORS} "no-trapping-math"="true" }}\n'
    f"attributes #1 = {{ nounwind strictfp {_VECTORS} }}"
)


def _complete(record: dict[str, Any]) -> bool:
    """True if a cache entry has everything that `make` writes."""
    kinds = {name: type(value) for name, value in record.items()}
    return kinds == {
        "size": int,
        "symbols": dict,
        "traffic": list,
        "seen": list,
        "skips": list,
        "bytes": int,
    }


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is decided of a kernel before it is translated; translating reserves more of the layout."""

    blocks: Blocks
    layout: Layout
    shadows: Shadows | None
    keep_going: bool

    def translate(self, kernel: Kernel, most: int) -> tuple[list[str], Program]:
        """Its LLVM IR as up to `most` modules."""
        return translate_parts(
            kernel, self.blocks, self.layout, self.shadows, most, keep_going=self.keep_going
        )


def _plan(kernel: Kernel, logged: bool, keep_going: bool) -> _Plan:
    blocks = find_blocks(kernel)
    layout = plan_layout(kernel, blocks, logged=logged)
    planned = plan_shadows(kernel, blocks, layout) if logged else None
    if planned is None:
        return _Plan(blocks, layout, None, keep_going)
    shadows, cut = planned
    return _Plan(cut, layout, shadows, keep_going)


def compile_kernel(
    module: Module, kernel: Kernel, *, logged: bool = False, keep_going: bool = False
) -> NativeKernel:
    """Compile a kernel, or load it from the cache. With `logged` the code writes the log of its accesses
    (`access_log`) and of uses of registers without a value (`shadow_registers`). With `keep_going` it goes on
    after accesses out of bounds."""
    if not kernel.instructions:
        raise UnsupportedError(f"kernel {kernel.name} without instructions")
    plan = _plan(kernel, logged, keep_going)
    key = (module.text, kernel.name, *["logged"] * logged, *["keep going"] * keep_going)
    better, name = native.cache_key(*key, Level.OPTIMISED.name), native.cache_key(*key, Level.BASELINE.name)
    optimiser = None
    found = native.read_cached(better)
    if found is None or not _complete(found.record):
        found = native.read_cached(name)
        if found is None or not _complete(found.record):
            found = _compile_baseline(kernel, plan)
            native.write_cached(name, found)

        def translate_again() -> list[str]:
            # As one module: where a launch runs, the other cores are busy.
            return _plan(kernel, logged, keep_going).translate(kernel, 1)[0]

        optimiser = Optimiser(better, found, found.record["bytes"], translate_again)
    layout = plan.layout
    layout.size = -(-found.record["size"] // ALIGN) * ALIGN
    traffic = tuple(found.record["traffic"])
    return NativeKernel(
        kernel,
        plan.blocks,
        layout,
        native.load_objects(found.objects),
        found.record["symbols"],
        traffic,
        dict(found.record["seen"]),
        plan.shadows,
        tuple((record, pc, code) for record, pc, code in found.record["skips"]),
        optimiser,
    )


def _compile_baseline(kernel: Kernel, plan: _Plan) -> native.Compiled:
    texts, program = plan.translate(kernel, processors())
    record = {
        "size": plan.layout.size,
        "symbols": program.symbol_slots,
        "traffic": list(program.traffic),
        "seen": list(program.seen.items()),
        "skips": program.skips,
        "bytes": sum(map(len, texts)),
    }
    return native.Compiled(native.compile_texts(texts, Level.BASELINE), record)
