# SPDX-License-Identifier: Apache-2.0
"""Looks up an opcode in the instruction table: its base, its suffixes and its form."""

from __future__ import annotations

from functools import cache

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx.forms import TYPES, VECTORS, Form
from gdnbench.sim.ptx.instructions import ROWS
from gdnbench.sim.ptx.ir import Address, Source, TensorAddress

_TENSOR_CORE = frozenset(f"sm_{chip}{kind}" for chip in (100, 101, 103, 110) for kind in "af")
# Instruction families, instructions and suffixes of some GPUs; ptxas refuses them for other targets.
_TARGETS = {
    "wgmma": frozenset(("sm_90a",)),
    "tcgen05": _TENSOR_CORE,
    "tcgen05.ld.red": frozenset(f"sm_{chip}{kind}" for chip in (101, 103, 110) for kind in "af"),
    "kind::i8": frozenset(("sm_100a", "sm_101a", "sm_110a")),
    "tile::scatter4": _TENSOR_CORE,
    "multicast::cluster::all": _TENSOR_CORE | {f"sm_{chip}{kind}" for chip in (120, 121) for kind in "af"},
}
_BEFORE_SM100 = frozenset(("sm_90", "sm_90a"))
_SINCE_SM100 = frozenset(("tile::gather4", "clusterlaunchcontrol"))


@cache
def foreign(op: str, mods: tuple[str, ...], target: str) -> str:
    """The family, instruction or suffix that a module for `target` cannot contain, "" if there is none (PTX
    ISA, "Target ISA Notes")."""
    for name in (op.partition(".")[0], op, *mods):
        if target not in _TARGETS.get(name, (target,)):
            return name if name in mods else op
        if name in _SINCE_SM100 and target in _BEFORE_SM100:
            return name if name in mods else op
    return ""


def split(opcode: str) -> tuple[str, tuple[str, ...]]:
    """Split an opcode into its longest known base, "" if unknown, and the suffixes that follow."""
    tokens = opcode.split(".")
    for length in range(len(tokens), 0, -1):
        base = ".".join(tokens[:length])
        if base in ROWS:
            return base, tuple(tokens[length:])
    return "", tuple(tokens)


@cache
def forms(op: str, mods: tuple[str, ...], types: tuple[str, ...], vec: int) -> tuple[Form, ...]:
    """The forms of an opcode with these suffixes, which differ in their operands. Raises UnsupportedError if
    there is none."""
    found = tuple(form for row in ROWS[op] if (form := row.match(mods, types, vec)) is not None)
    if not found:
        raise UnsupportedError(_refusal(op, mods, types, vec))
    return found


def _refusal(op: str, mods: tuple[str, ...], types: tuple[str, ...], vec: int) -> str:
    """The reason for refusing an opcode: an unknown suffix, a missing one, or the combination."""
    known = frozenset[str]().union(*(row.suffixes for row in ROWS[op]))
    for name in mods:
        if name not in known:
            return f"{op} with .{name}"
    for name in sorted(known):
        if any(row.match((*mods, name), types, vec) for row in ROWS[op]):
            return f"{op} without .{name}"
    vector = (f"v{vec}",) if vec > 1 else ()
    return f"instruction {'.'.join((op, *mods, *vector, *types))}"


def classify(suffixes: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Suffixes as (modifiers, types, vector length). Raises UnsupportedError for a second vector length."""
    mods = tuple(name for name in suffixes if name not in TYPES and name not in VECTORS)
    vectors = [name for name in suffixes if name in VECTORS]
    if len(vectors) > 1:
        raise UnsupportedError(f".{' and .'.join(vectors)}")
    return mods, tuple(name for name in suffixes if name in TYPES), VECTORS[vectors[0]] if vectors else 1


def fitting(forms: tuple[Form, ...], sources: tuple[Source, ...]) -> Form | None:
    """The first form that fits `sources`, by their number and by which are memory operands."""
    for form in forms:
        fewest, most = form.sources
        if fewest <= len(sources) <= most and all(map(_is, sources, form.addresses)):
            return form
    return None


def _is(source: Source, kind: str) -> bool:
    if isinstance(source, Address):
        return kind == "address"
    return kind == "tensor" if isinstance(source, TensorAddress) else not kind
