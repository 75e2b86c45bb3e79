# SPDX-License-Identifier: Apache-2.0
"""Compiles a kernel from IR to loaded machine code: translates every block, then compiles it or takes it from
the cache."""

from __future__ import annotations

import re
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
from gdnbench.sim.compiler.blocks import Block, Blocks, blocks_of, is_service
from gdnbench.sim.compiler.dispatch import TABLES, tables
from gdnbench.sim.compiler.emit import Helper, Library
from gdnbench.sim.compiler.layout import ALIGN, Layout, plan_layout
from gdnbench.sim.compiler.native import Level
from gdnbench.sim.compiler.optimiser import Optimiser
from gdnbench.sim.compiler.parallel import processors
from gdnbench.sim.compiler.runtime_calls import enter_service
from gdnbench.sim.compiler.shadow_registers import Shadows
from gdnbench.sim.compiler.shadow_registers import plan_shadows as plan_shadows
from gdnbench.sim.compiler.translator import Found, Program, Translate, Translator
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
    """A kernel ready to run. `symbols` are the state offsets of module variables' addresses, `skips` the
    records of skipped faults as (offset in the state, pc, code). By block: `seen` and `moved` of
    `translator.Found`.
    `optimiser` is None for code that is the best already."""

    kernel: Kernel
    blocks: Blocks
    layout: Layout
    loaded: native.Loaded
    symbols: dict[str, int]
    seen: dict[int, int]
    moved: dict[int, dict[str, int]]
    shadows: Shadows | None = None
    skips: tuple[tuple[int, int, int], ...] = ()
    optimiser: Optimiser | None = None


def _translations(kernel: Kernel) -> dict[str, Translate]:
    table = _table()
    for ins in kernel.instructions:
        if is_service(ins) and ins.op not in table:
            table[ins.op] = enter_service
    return table


def translate(
    kernel: Kernel,
    blocks: Blocks,
    layout: Layout,
    shadows: Shadows | None = None,
    *,
    keep_going: bool = False,
) -> tuple[str, Program]:
    """The LLVM IR of a kernel as one module, with all functions that it calls."""
    program = Program(kernel, blocks, layout, runtime.new_library(), shadows, keep_going)
    return _whole_module(program), program


def _whole_module(program: Program) -> str:
    table = _translations(program.kernel)
    functions = [Translator(program, block).translate(table) for block in program.blocks.blocks]
    library = program.library
    library.called.add(ENTRY)
    helpers = library.all_called().values()
    declarations = dict(library.declarations)
    for helper in helpers:
        declarations |= helper.declarations
    declared = [text for name, text in declarations.items() if name not in TABLES]
    texts = [ATTRIBUTES, *declared, _tables(program), *functions, *(helper.text for helper in helpers)]
    return "\n".join(texts)


ENTRY = "run"


def _tables(program: Program) -> str:
    blocks, writes = program.blocks, program.found.writes
    return tables(blocks, [sorted(writes.get(block.index, ())) for block in blocks.blocks])


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a kernel's blocks: their object file, the texts of the helpers that they call, and what else
    translating them found. `size` is the bytes of their LLVM IR."""

    code: bytes
    helpers: frozenset[str]
    found: Found
    size: int


def _make_part(program: Program, table: dict[str, Translate], blocks: Sequence[Block]) -> Part:
    """Translate and compile some blocks."""
    program.library = Library(helpers=program.library.helpers)
    program.found = Found()
    functions = [Translator(program, block).translate(table) for block in blocks]
    library = program.library
    called = [library.helpers[name] for name in sorted(library.called) if name in library.helpers]
    text = "\n".join(
        (ATTRIBUTES, *library.declarations.values(), *(_declaration(one.text) for one in called), *functions)
    )
    helpers = frozenset(_helper_module(program.library, one) for one in library.all_called().values())
    for helper in sorted(helpers):
        native.compile_helper(helper)
    return Part(native.compile_text(text, Level.BASELINE), helpers, program.found, len(text))


def _helper_module(library: Library, helper: Helper) -> str:
    """A module of one helper function, which other modules call by its name."""
    called = [_declaration(library.helpers[name].text) for name in sorted(helper.calls & {*library.helpers})]
    text = helper.text.removeprefix("define internal ")
    text = helper.text if text == helper.text else f"define {text}"
    return "\n".join((ATTRIBUTES, *sorted(helper.declarations.values()), *called, text))


_DEFINITION = re.compile(r"define (?:internal )?(.+?) @([\w.]+)\((.*?)\)")
_PARAMETER = re.compile(r"(?: noalias)? %[\w.]+")


def _declaration(text: str) -> str:
    """The declaration of a function by its definition."""
    match = _DEFINITION.match(text)
    assert match is not None, text
    result, name, parameters = match.groups()
    return f"declare {result} @{name}({_PARAMETER.sub('', parameters)})"


PART_WEIGHT = 400
"""The least instructions of a part that is compiled by itself: a process for it takes some 20 ms."""
PARTS_OF_A_PROCESS = 3  # more even out how long they take; each costs some ms


def _groups(blocks: Blocks, processes: int) -> list[list[Block]]:
    """The blocks in runs of about equal work, by the number of instructions."""
    weights = [block.stop - block.start + BLOCK_WEIGHT for block in blocks.blocks]
    total = sum(weights)
    count = max(min(processes * PARTS_OF_A_PROCESS, total // PART_WEIGHT), 1) if processes > 1 else 1
    groups: list[list[Block]] = [[] for _ in range(count)]
    done = 0
    for block, weight in zip(blocks.blocks, weights, strict=True):
        groups[min(done * count // total, count - 1)].append(block)
        done += weight
    return [group for group in groups if group]


BLOCK_WEIGHT = 3  # the function of a block costs as much as so many instructions


# Vectors of 512 bits; on CPUs without them LLVM splits them. Functions with #1 change the CPU's rounding
# mode; LLVM must not move arithmetic across them.
_VECTORS = '"prefer-vector-width"="512" "min-legal-vector-width"="512"'
ATTRIBUTES = (
    f'attributes #0 = {{ nounwind {_VECTORS} "no-trapping-math"="true" }}\n'
    f"attributes #1 = {{ nounwind strictfp {_VECTORS} }}"
)


def _complete(record: dict[str, Any]) -> bool:
    """True if a cache entry has everything that `compile_kernel` writes."""
    kinds = {name: type(value) for name, value in record.items()}
    return kinds == {"seen": list, "moved": list, "skips": list, "bytes": int}


def _plan(
    kernel: Kernel, logged: bool, keep_going: bool, clustered: bool, path: bool = False
) -> tuple[Program, Shadows | None]:
    """What is decided of a kernel before it is translated."""
    blocks = blocks_of(kernel)
    layout = plan_layout(kernel, blocks, logged=logged or path)
    planned = plan_shadows(kernel, blocks, layout) if logged else None
    shadows = None
    if planned is not None:
        shadows, blocks = planned
    library = runtime.new_library(clustered=clustered)
    return Program(kernel, blocks, layout, library, shadows, keep_going, clustered, path), shadows


def compile_kernel(
    module: Module,
    kernel: Kernel,
    *,
    logged: bool = False,
    keep_going: bool = False,
    clustered: bool = False,
    path: bool = False,
) -> NativeKernel:
    """Compile a kernel, or load it from the cache. With `logged` the code writes the log of its accesses
    (`access_log`) and of uses of registers without a value (`shadow_registers`). With `keep_going` it goes on
    after accesses out of bounds. `clustered`: for launches with clusters of several CTAs. `path`: it writes
    the log of its accesses and of the blocks that a warp enters."""
    if not kernel.instructions:
        raise UnsupportedError(f"kernel {kernel.name} without instructions")
    program, shadows = _plan(kernel, logged, keep_going, clustered, path)
    options = (*["logged"] * logged, *["keep going"] * keep_going, *["clustered"] * clustered)
    options += ("path",) * path
    key = (module.text, kernel.name, *options)
    better, name = native.cache_key(*key, Level.OPTIMISED.name), native.cache_key(*key, Level.BASELINE.name)
    optimiser = None
    found = native.read_cached(better)
    if found is None or not _complete(found.record):
        found = native.read_cached(name)
        if found is None or not _complete(found.record):
            found = _baseline_made_once(name, program)

        def translate_again() -> list[str]:
            # As one module: where a launch runs, the other cores are busy.
            return [_whole_module(_plan(kernel, logged, keep_going, clustered, path)[0])]

        optimiser = Optimiser(better, found, found.record["bytes"], translate_again)
    layout = program.layout
    layout.size = -(-layout.size // ALIGN) * ALIGN
    return NativeKernel(
        kernel,
        program.blocks,
        layout,
        native.load_objects(found.objects),
        program.symbol_slots,
        dict(found.record["seen"]),
        dict(found.record["moved"]),
        shadows,
        tuple((record, pc, code) for record, pc, code in found.record["skips"]),
        optimiser,
    )


def _baseline_made_once(name: str, program: Program) -> native.Compiled:
    """Compile the kernel, unless another process does: then wait for it."""
    with native.CACHE.making(name):
        found = native.read_cached(name)
        if found is None or not _complete(found.record):
            found = _compile_baseline(program)
            native.write_cached(name, found)
    return found


def _compile_baseline(program: Program) -> native.Compiled:
    table, processes = _translations(program.kernel), processors()
    groups = _groups(program.blocks, processes)
    parts = native.in_processes(lambda group: _make_part(program, table, group), groups, processes)
    found, library = Found(), runtime.new_library(clustered=program.clustered)
    for part in parts:
        found.add(part.found)
    library.called.add(ENTRY)
    helpers = {_helper_module(library, one) for one in library.all_called().values()}
    helpers.update(*(part.helpers for part in parts))
    program.found = found
    blocks = "".join(f"declare i32 @block{block.index}(ptr, i32)\n" for block in program.blocks.blocks)
    with native.llvm_lock:
        objects = (
            *(part.code for part in parts),
            native.compile_text(_tables(program) + blocks, Level.BASELINE),
            *map(native.compile_helper, sorted(helpers)),
        )
    record = {
        "seen": list(found.seen.items()),
        "moved": list(found.moved.items()),
        "skips": found.skips,
        "bytes": sum(part.size for part in parts),
    }
    return native.Compiled(objects, record)
