"""Loads, stores and atomics: what an instruction touches, from its spelling and its lanes' addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdnbench.sim.checker.events import Access
from gdnbench.sim.machine.seam import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_SIZE
from gdnbench.sim.ptx.ir import Address, Instruction, Kernel, Symbol
from gdnbench.sim.ptx.literals import width_of

Bytes = npt.NDArray[np.int64]

_SHARED = ("shared", "shared::cta", "shared::cluster")
_STRONG = ("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")
_READS = ("ld", "ldu", "ldmatrix")
_WRITES = ("st", "stmatrix")
ROW_BYTES = 16


@dataclass(frozen=True, slots=True)
class Form:
    """`width` bytes a lane, `lanes` of them with an address; `space` is empty if addresses are generic.
    `acquires` and `releases` are of the instruction itself; a `strong` one takes part in such a pattern."""

    access: Access
    width: int
    lanes: int
    space: str
    strong: bool = False
    acquires: bool = False
    releases: bool = False


def form_of(ins: Instruction) -> Form | None:
    """None if the instruction touches neither shared nor global memory."""
    if ins.op not in (*_READS, *_WRITES, "atom", "red") or ins.has("local", "param", "param::entry"):
        return None
    space = "shared" if ins.has(*_SHARED) else "global" if ins.has("global", "const") else ""
    address = ins.sources[0]
    if not space and isinstance(address, Address) and isinstance(address.base, Symbol):
        space = "shared" if address.base.variable.space == "shared" else "global"
    if ins.op in ("ldmatrix", "stmatrix"):
        matrices = int(next(mod for mod in ins.mods if mod in ("x1", "x2", "x4"))[1:])
        access = Access.READ if ins.op == "ldmatrix" else Access.WRITE
        return Form(access, ROW_BYTES, 8 * matrices, "shared")
    width = width_of(ins.types[-1]) // 8 * ins.vec
    if ins.op in ("atom", "red"):
        return Form(
            Access.ATOMIC,
            width,
            32,
            space,
            strong=True,
            acquires=ins.op == "atom" and ins.has("acquire", "acq_rel"),
            releases=ins.has("release", "acq_rel"),
        )
    strong = ins.has(*_STRONG)
    access = Access.ATOMIC if strong else Access.READ if ins.op in _READS else Access.WRITE
    return Form(access, width, 32, space, strong, ins.has("acquire"), ins.has("release"))


def granule(kernel: Kernel, space: str) -> int:
    """The largest cell, up to 4 bytes, that no access of the kernel to `space` takes a part of."""
    widths = [4]
    for ins in kernel.instructions:
        form = form_of(ins)
        if form is not None and form.space in ("", space):
            widths.append(width_of(ins.types[-1]) // 8 * ins.vec if ins.types else form.width)
    return min(widths)


def by_space(form: Form, addresses: npt.NDArray[np.uint64]) -> Iterator[tuple[str, Bytes]]:
    """(memory, the addresses in it)."""
    found = addresses.astype(np.int64)
    if form.space:
        yield form.space, found
        return
    in_shared = (found >= SHARED_WINDOW) & (found < SHARED_WINDOW + WINDOW_SIZE)
    if in_shared.any():
        yield "shared", found[in_shared] - SHARED_WINDOW
    elsewhere = in_shared.copy()
    for window in (LOCAL_WINDOW, PARAM_WINDOW):
        elsewhere |= (found >= window) & (found < window + WINDOW_SIZE)
    if not elsewhere.all():
        yield "global", found[~elsewhere]


def cells(starts: Bytes, width: int, size: int) -> Bytes:
    """The cells of `size` bytes of accesses of `width` bytes."""
    return (starts[:, None] // size + np.arange(max(width // size, 1))).reshape(-1)
