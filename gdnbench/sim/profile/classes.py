"""Instruction classes: what a profile sums its counts up to."""

from __future__ import annotations

from gdnbench.sim.ptx import isa

_ARITHMETIC = """add addc sub subc mul mul24 mad madc mad24 sad div rem abs neg min max fma copysign testp
    popc clz bfind fns brev bfe bfi szext bmsk dp4a dp2a"""
_CLASSES: dict[str, str] = {
    "logic and shifts": "and or xor not cnot lop3 shf shl shr prmt",
    "special functions": "rcp sqrt rsqrt sin cos lg2 ex2 tanh",
    "compare and select": "set setp selp slct",
    "convert": "cvt cvt.pack",
    "move and address": "mov cvta isspacep mapa getctarank",
    "load and store": "ld ldu st",
    "matrix load and store": "ldmatrix stmatrix movmatrix",
    "atomic": "atom red",
    "mma.sync": "mma",
    "warp collective": "shfl vote match redux elect activemask bar.warp.sync",
    "control": "bra ret exit trap brkpt",
}
_CLASS_OF = {op: name for name, ops in _CLASSES.items() for op in ops.split()}
# Families whose opcodes share a prefix; the longest prefix wins.
_PREFIXES = {
    "mbarrier": "mbarrier",
    "bar": "CTA barrier",
    "barrier": "CTA barrier",
    "cp.async": "cp.async",
    "cp.async.bulk": "bulk copy",
    "cp.async.bulk.tensor": "TMA",
    "cp.reduce": "bulk copy",
    "cp.reduce.async.bulk.tensor": "TMA",
    "st.async": "bulk copy",
    "red.async": "bulk copy",
    "tcgen05": "tcgen05, other",
    "tcgen05.mma": "tcgen05.mma",
    "tcgen05.ld": "TMEM load and store",
    "tcgen05.st": "TMEM load and store",
    "wgmma": "wgmma, other",
    "wgmma.mma_async": "wgmma.mma_async",
    "fence": "fence",
    "membar": "fence",
}
OTHER = "other"


def class_of(counted: str) -> str:
    """The class of a count by `machine.counters.counted_as`; "other" for hints and launch control."""
    op, rest = isa.split(counted)
    if op in _ARITHMETIC.split():
        return "float arithmetic" if rest and "f" in rest[0] else "integer arithmetic"
    if op in _CLASS_OF:
        return _CLASS_OF[op]
    fitting = [prefix for prefix in _PREFIXES if op == prefix or op.startswith(f"{prefix}.")]
    return _PREFIXES[max(fitting, key=len)] if fitting else OTHER
