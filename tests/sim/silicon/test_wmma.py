# SPDX-License-Identifier: Apache-2.0
"""`wmma` in both engines against an H100: which elements a register has, which the PTX ISA leaves open, and
the bits of products. `vectors/wmma.npz` has what the GPU answered to the same instructions."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gdnbench.sim.run import ENGINES, run_ptx
from tests.subset import quick

Array = npt.NDArray[Any]
VECTORS = Path(__file__).parent / "vectors" / "wmma.npz"
SHAPES = {
    "m16n16k16": (16, 16, 16),
    "m32n8k16": (32, 8, 16),
    "m8n32k16": (8, 32, 16),
    "m16n16k8": (16, 16, 8),
    "m8n8k4": (8, 8, 4),
}
SIZES = {"f16": 2, "bf16": 2, "s8": 1, "f64": 8}  # bytes of an element; others have 4


@cache
def stored() -> dict[str, Array]:
    with np.load(VECTORS) as file:
        return dict(file)


def extent(operand: str, shape: str) -> tuple[int, int]:
    m, n, k = SHAPES[shape]
    return {"a": (m, k), "b": (k, n), "c": (m, n)}[operand]


def count(operand: str, shape: str, kind: str) -> int:
    """Registers of an operand (PTX ISA, "Matrix Fragments for WMMA"). The recorded layouts have as many."""
    held = stored()[f"{operand} row {shape} {kind}"].size // 32
    return held * SIZES.get(kind, 4) // (8 if kind == "f64" else 4)


def several(first: int, number: int, kind: str) -> str:
    return "{" + ", ".join(f"%{'d' if kind == 'f64' else 'r'}{first + i}" for i in range(number)) + "}"


def load(operand: str, layout: str, shape: str, kind: str, array: int, first: int) -> str:
    stride = extent(operand, shape)[layout == "row"]
    registers = several(first, count(operand, shape, kind), kind)
    opcode = f"wmma.load.{operand}.sync.aligned.{layout}.{shape}.global.{kind}"
    return f"{opcode} {registers}, [%a{array}], {stride};\n"


def run(engine: str, body: str, arrays: list[Array]) -> None:
    """`body` in one warp; %a<i> holds the address of array i, %l the lane."""
    parameters = ", ".join(f".param .u64 p{i}" for i in range(len(arrays)))
    loads = "".join(f"ld.param.u64 %a{i}, [p{i}];\n" for i in range(len(arrays)))
    text = f""".version 8.7
.target sm_100a
.address_size 64
.visible .entry k({parameters})
{{
.reg .b32 %r<100>, %l; .reg .b64 %d<100>, %q, %a<{len(arrays)}>;
mov.u32 %l, %tid.x;
{loads}{body}
ret;
}}"""
    run_ptx(text, "k", (1, 1, 1), (32, 1, 1), arrays, engine=engine, threads=1)


def unsigned(kind: str) -> Any:
    return {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[SIZES.get(kind, 4)]


CASES = [(shape, engine) for shape in SHAPES for engine in ENGINES]
# The interpreter's kernels need no compiling.
SHORT = [i for i, (shape, engine) in enumerate(CASES) if engine == "interpreter" or shape == "m8n32k16"]


@pytest.mark.parametrize(("shape", "engine"), quick(CASES, *SHORT))
def test_the_elements_of_registers(shape: str, engine: str) -> None:
    """Every element is its number, so that a register shows which ones it has."""
    keys = [key for key in stored() if key.split()[0] in "abc" and key.split()[2] == shape]
    arrays, body, expected = [], "", []
    for key in keys:
        operand, layout, _, kind = key.split()
        rows, columns = extent(operand, shape)
        arrays.append(np.arange(rows * columns).astype(unsigned(kind)))
        registers, wide = count(operand, shape, kind), kind == "f64"
        body += load(operand, layout, shape, kind, len(arrays) - 1, 0)
        arrays.append(np.zeros(stored()[key].size, unsigned(kind)))
        expected.append(stored()[key].astype(unsigned(kind)))
        bits = 64 if wide else 32
        body += f"mad.wide.u32 %q, %l, {registers * bits // 8}, %a{len(arrays) - 1};\n"
        name = "d" if wide else "r"
        body += "".join(f"st.global.b{bits} [%q+{i * bits // 8}], %{name}{i};\n" for i in range(registers))
    assert len(keys) >= 3
    run(engine, body, arrays)
    for key, found, wanted in zip(keys, arrays[1::2], expected, strict=True):
        assert np.array_equal(found, wanted), key


@pytest.mark.parametrize(("shape", "engine"), quick(CASES, *SHORT))
def test_the_bits_of_products(shape: str, engine: str) -> None:
    keys = sorted({key[:-2] for key in stored() if key.startswith("mma") and key.split()[3] == shape})
    arrays, body = [], ""
    for key in keys:
        _, la, lb, _, d, kind, c = key.split()
        types = f"{d}.{c}" if kind == "f16" else f"{d}.{kind}.{kind}.{c}"
        a_array = len(arrays)
        arrays += [stored()[f"{key} {name}"].copy() for name in "abc"]
        arrays.append(np.zeros_like(stored()[f"{key} d"]))
        counts = [
            count("c", shape, d),
            count("a", shape, kind),
            count("b", shape, kind),
            count("c", shape, c),
        ]
        body += load("a", la, shape, kind, a_array, 0) + load("b", lb, shape, kind, a_array + 1, 20)
        body += load("c", "row", shape, c, a_array + 2, 40)
        operands = ", ".join(several(at, n, d) for at, n in zip((60, 0, 20, 40), counts, strict=True))
        body += f"wmma.mma.sync.aligned.{la}.{lb}.{shape}.{types} {operands};\n"
        result = f"[%a{a_array + 3}], {several(60, counts[0], d)}, {SHAPES[shape][1]};\n"
        body += f"wmma.store.d.sync.aligned.row.{shape}.global.{d} {result}"
    assert keys
    run(engine, body, arrays)
    for key, found in zip(keys, arrays[3::4], strict=True):
        assert np.array_equal(found, stored()[f"{key} d"]), key
