# SPDX-License-Identifier: Apache-2.0
"""Two versions of a small CuTe DSL kernel, traced and compared: what was planted is what is found."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench import sim
from gdnbench.bisect.instruction.compare import Finding, ValueFinding, first_difference
from gdnbench.diff.traces.alignment import Alignment, Run, Unequal, align
from gdnbench.sim import Settings
from gdnbench.sim.value_trace import Selection
from gdnbench.trace.reader import open_trace
from gdnbench.trace.watching import Tracing
from gdnbench.trace.writer import TraceWriter, make_trace

KERNEL = """
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute


@cute.jit
def blended(value, total):
    return total * cutlass.Float32(0.625) + value


@cute.kernel
def _smooth(x: cute.Tensor, z: cute.Tensor, rounds: cutlass.Int32):
    index = cute.arch.block_idx()[0] * 64 + cute.arch.thread_idx()[0]
    value = x[index]
    total = cutlass.Float32(0.0)
    for step in cutlass.range(rounds, unroll=1):
        total = blended(value, total)
    product = total * value
    shifted = product + cutlass.Float32(1.0) / total
    z[index] = shifted


@cute.jit
def smooth(x: cute.Tensor, z: cute.Tensor, rounds: cutlass.Int32, stream: cuda.CUstream):
    _smooth(x, z, rounds).launch(grid=(2, 1, 1), block=(64, 1, 1), stream=stream)
"""

BFLOAT16 = ("product = total * value", "product = (total * value).to(cutlass.BFloat16).to(cutlass.Float32)")
FEWER = ("cutlass.range(rounds, unroll=1)", "cutlass.range(rounds - 1, unroll=1)")
HARMLESS = ("product + cutlass.Float32(1.0) / total", "cutlass.Float32(1.0) / total + product")
REASSOCIATED = ("total * cutlass.Float32(0.625) + value", "(total * cutlass.Float32(1.25) + value * 2) / 2")
CONSTANT = ("cutlass.Float32(0.625)", "cutlass.Float32(0.6)")
COMMENTS = ("    total = cutlass", "    # a comment\n\n    # and another\n    total = cutlass")


def traced(folder: Path, name: str, *edits: tuple[str, str]) -> Run:
    """The trace of CTA 1 of the kernel with these edits."""
    text = KERNEL
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = 1 + torch.rand(128, generator=torch.Generator().manual_seed(0))
    z = torch.full_like(x, torch.nan)
    path = folder / f"{name}.zarr"
    make_trace(path)
    watch = Tracing(TraceWriter(path), Selection(frozenset({1})))

    import cutlass.cute.runtime as runtime

    stream = runtime.make_fake_stream()
    fake = runtime.make_fake_tensor(_float32(), (128,), (1,), assumed_align=16)
    kernel = sim.compile(module.smooth, fake, fake, 4, stream, arch="sm_100a")
    with sim.active(Settings(watch=watch)):
        sim.launch(kernel, x, z, 4)
    with open_trace(path) as trace:
        return Run.of_launch(trace.launches[0])


def _float32() -> Any:
    import cutlass

    return cutlass.Float32


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return traced(tmp_path_factory.mktemp("good"), "good")


def compared(good: Run, folder: Path, *edits: tuple[str, str]) -> tuple[Alignment, Finding | None]:
    alignment = align(good, traced(folder, "bad", *edits))
    return alignment, first_difference(alignment)


def line_of(run: Run, event: int) -> str:
    ins = run.instruction(event)
    assert ins.file is not None
    assert ins.file_line is not None
    return run.source.line_text(ins.file, ins.file_line)


def test_one_rounding_more_is_named_with_both_values(good: Run, tmp_path: Path) -> None:
    alignment, found = compared(good, tmp_path, BFLOAT16)
    assert isinstance(found, ValueFinding)
    assert found.excess is not None
    assert {line_of(alignment.bad, event) for event in found.edited} == {BFLOAT16[1]}
    assert found.format == "f32"
    # The product is below 16 and rounded to 8 bits: by up to half of 2^(3 - 7).
    assert 2**-20 < found.excess.difference <= 2**-5


def test_an_iteration_fewer_is_named(good: Run, tmp_path: Path) -> None:
    _, found = compared(good, tmp_path, FEWER)
    assert isinstance(found, Unequal)
    assert (found.good, found.bad) == (4, 3)
    assert "blended" in found.site.text or "0.625" in found.site.text


def test_a_constant_is_named(good: Run, tmp_path: Path) -> None:
    _, found = compared(good, tmp_path, CONSTANT)
    assert isinstance(found, ValueFinding)
    assert "0.625" in line_of(good, found.good)


@pytest.mark.every(2)
@pytest.mark.parametrize("edits", [[COMMENTS], [HARMLESS], [REASSOCIATED], [COMMENTS, REASSOCIATED]])
def test_nothing_is_found_where_nothing_is_wrong(
    good: Run, tmp_path: Path, edits: list[tuple[str, str]]
) -> None:
    _, found = compared(good, tmp_path, *edits)
    assert found is None


def test_a_fault_is_found_behind_a_harmless_change(good: Run, tmp_path: Path) -> None:
    alignment, found = compared(good, tmp_path, COMMENTS, REASSOCIATED, BFLOAT16)
    assert isinstance(found, ValueFinding)
    assert line_of(alignment.bad, found.edited[0]) == BFLOAT16[1]
