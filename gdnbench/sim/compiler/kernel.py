"""Compiles a kernel from IR to loaded machine code: translates every block, then compiles it or takes it from
the cache."""

from __future__ import annotations

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
)
from gdnbench.sim.compiler.blocks import Blocks, find_blocks, is_service
from gdnbench.sim.compiler.dispatch import dispatcher
from gdnbench.sim.compiler.emit import Library
from gdnbench.sim.compiler.layout import ALIGN, Layout, plan_layout
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
        **warp.TABLE,
        **control.TABLE,
    }


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """A kernel ready to run. `symbols` are the state offsets of module variables' addresses, `traffic` the
    names of the byte counters, `skips` the records of skipped faults as (offset in the state, pc, code)."""

    kernel: Kernel
    blocks: Blocks
    layout: Layout
    loaded: native.Loaded
    symbols: dict[str, int]
    traffic: tuple[str, ...]
    seen: dict[int, int]
    shadows: Shadows | None = None
    skips: tuple[tuple[int, int, int], ...] = ()


def translate(
    kernel: Kernel,
    blocks: Blocks,
    layout: Layout,
    shadows: Shadows | None = None,
    *,
    keep_going: bool = False,
) -> tuple[str, Program]:
    """The LLVM IR of a kernel."""
    library = Library(dict(runtime.DECLARATIONS))
    program = Program(kernel, blocks, layout, library, shadows, keep_going=keep_going)
    table = _table()
    for ins in kernel.instructions:
        if is_service(ins) and ins.op not in table:
            table[ins.op] = enter_service
    functions = [Translator(program, block).translate(table) for block in blocks.blocks]
    text = "\n".join((ATTRIBUTES, dispatcher(blocks), library.text(), *functions))
    return "\n".join((text, *runtime.support(text))), program


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
    return kinds == {"size": int, "symbols": dict, "traffic": list, "seen": list, "skips": list}


def compile_kernel(
    module: Module, kernel: Kernel, *, logged: bool = False, keep_going: bool = False
) -> NativeKernel:
    """Compile a kernel, or load it from the cache. With `logged` the code writes the log of its accesses
    (`access_log`) and of uses of registers without a value (`shadow_registers`). With `keep_going` it goes on
    after accesses out of bounds."""
    if not kernel.instructions:
        raise UnsupportedError(f"kernel {kernel.name} without instructions")
    blocks = find_blocks(kernel)
    layout = plan_layout(kernel, blocks, logged=logged)
    shadows = None
    if logged and (planned := plan_shadows(kernel, blocks, layout)) is not None:
        shadows, blocks = planned
    name = native.cache_key(module.text, kernel.name, *["logged"] * logged, *["keep going"] * keep_going)
    found = native.read_cached(name)
    if found is None or not _complete(found.record):
        text, program = translate(kernel, blocks, layout, shadows, keep_going=keep_going)
        record = {
            "size": layout.size,
            "symbols": program.symbol_slots,
            "traffic": list(program.traffic),
            "seen": list(program.seen.items()),
            "skips": program.skips,
        }
        found = native.Compiled(native.compile_text(text), record)
        native.write_cached(name, found)
    layout.size = -(-found.record["size"] // ALIGN) * ALIGN
    traffic = tuple(found.record["traffic"])
    return NativeKernel(
        kernel,
        blocks,
        layout,
        native.load_object(found.code),
        found.record["symbols"],
        traffic,
        dict(found.record["seen"]),
        shadows,
        tuple((record, pc, code) for record, pc, code in found.record["skips"]),
    )
