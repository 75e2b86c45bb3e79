# SPDX-License-Identifier: Apache-2.0
"""Runs PTX on arrays: one element a thread, operands loaded from global memory, results stored there.

`apply(engine, "add.s32 %d0, %s0, %s1;", [a, b], [np.int32])` gives `[a + b]` as the engine computes it.
Registers %s<i> and %d<i> are as wide as the arrays' elements; a bool array is a predicate. Everything runs
in one warp at a time, so that the text may be a collective, and may declare more registers or use shared
memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gdnbench.sim.run import run_ptx

Array = npt.NDArray[Any]
HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
BLOCK = 128


def _width(dtype: np.dtype[Any]) -> int:
    return 8 * dtype.itemsize


def _declare(names: Sequence[str], dtypes: Sequence[np.dtype[Any]]) -> str:
    kinds = ["pred" if dtype == np.bool_ else f"b{_width(dtype)}" for dtype in dtypes]
    return "".join(f".reg .{kind} {name};\n" for name, kind in zip(names, kinds, strict=True))


def _load(name: str, parameter: str, dtype: np.dtype[Any]) -> str:
    width = _width(dtype)
    address = (
        f"ld.param.b64 %address, [{parameter}];\nmad.wide.u32 %address, %index, {width // 8}, %address;\n"
    )
    if dtype == np.bool_:
        return f"{address}ld.global.u8 %truth, [%address];\nsetp.ne.b16 {name}, %truth, 0;\n"
    return f"{address}ld.global.b{width} {name}, [%address];\n"


def _store(name: str, parameter: str, dtype: np.dtype[Any]) -> str:
    width = _width(dtype)
    address = (
        f"ld.param.b64 %address, [{parameter}];\nmad.wide.u32 %address, %index, {width // 8}, %address;\n"
    )
    if dtype == np.bool_:
        return f"{address}selp.b16 %truth, 1, 0, {name};\nst.global.u8 [%address], %truth;\n"
    return f"{address}st.global.b{width} [%address], {name};\n"


def kernel(text: str, sources: Sequence[np.dtype[Any]], results: Sequence[np.dtype[Any]]) -> str:
    """The PTX of a kernel `k` around `text`."""
    inputs = [f"in{i}" for i in range(len(sources))]
    outputs = [f"out{i}" for i in range(len(results))]
    s, d = [f"%s{i}" for i in range(len(sources))], [f"%d{i}" for i in range(len(results))]
    loads = "".join(map(_load, s, inputs, sources))
    stores = "".join(map(_store, d, outputs, results))
    params = ", ".join(f".param .b64 {name}" for name in inputs + outputs)
    return f"""{HEADER}
.visible .entry k({params})
{{
.reg .b16 %truth;
.reg .b32 %index, %block, %extent;
.reg .b64 %address;
{_declare(s, sources)}{_declare(d, results)}
mov.u32 %index, %tid.x;
mov.u32 %block, %ctaid.x;
mov.u32 %extent, %ntid.x;
mad.lo.s32 %index, %block, %extent, %index;
{loads}
{text}
{stores}
ret;
}}
"""


def apply(
    engine: str, text: str, sources: Sequence[Array], results: Sequence[Any], *, smem: int = 0
) -> list[Array]:
    """The results of `text` for each element of the sources, which are as long as each other."""
    length = sources[0].size if sources else BLOCK
    threads = -(-length // BLOCK) * BLOCK
    padded = [np.resize(source, threads) for source in sources]  # repeats from the start
    dtypes = [np.dtype(result) for result in results]
    outputs = [np.zeros(threads, dtype) for dtype in dtypes]
    ptx = kernel(text, [source.dtype for source in sources], dtypes)
    grid = (threads // BLOCK, 1, 1)
    run_ptx(ptx, "k", grid, (BLOCK, 1, 1), [*padded, *outputs], smem, engine=engine, threads=1)
    return [output[:length] for output in outputs]


def one(engine: str, text: str, sources: Sequence[Array], result: Any) -> Array:
    """The only result of `text`."""
    return apply(engine, text, sources, [result])[0]


def check(actual: Array, expected: Array, *sources: Array) -> None:
    """Equal bit for bit; shows the first difference with the operands that made it."""
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    unsigned = np.dtype(f"u{actual.dtype.itemsize}")
    got, want = np.ascontiguousarray(actual).view(unsigned), np.ascontiguousarray(expected).view(unsigned)
    if not np.array_equal(got, want):
        at = int(np.flatnonzero(got != want)[0])
        operands = ", ".join(f"{np.ascontiguousarray(s)[at]!r}" for s in sources)
        wrong = int((got != want).sum())
        raise AssertionError(
            f"{wrong} of {got.size} differ; first at {at}: ({operands}) gives {actual[at]!r} = "
            f"{int(got[at]):#x}, expected {expected[at]!r} = {int(want[at]):#x}"
        )
