# SPDX-License-Identifier: Apache-2.0
"""What compiled programs hand to CUDA, without a GPU: a mock runtime records it; and what they refuse."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench_kernels import cuda_launch
from gdnbench_kernels.artifacts import ArgumentError
from gdnbench_kernels.compiling import program
from gdnbench_kernels.gdn_prefill import sources
from gdnbench_kernels.source import Source
from tests.kernels.compiled_kernels import COLUMNS, ROWS, arguments
from tests.subset import quick

AFFINE = Source.create("tests.affine", "tests.kernels.compiled_kernels:affine", with_bias=True)
PLAIN = Source.create("tests.affine", "tests.kernels.compiled_kernels:affine", with_bias=False)

Arguments = tuple[Any, ...]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device() -> None:
    with pytest.raises(
        NotImplementedError,
        match=wording(
            "kernels.gpu-unsuitable",
            kernel="tests.affine",
            arch="sm_100a",
            needed="10.0; there is no CUDA device here",
        ),
    ):
        program(AFFINE)(*arguments())


def pretend_device(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: name)
    stream = SimpleNamespace(cuda_stream=0x5150)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: stream)


@pytest.mark.parametrize(
    ("arch", "capability", "needs"),
    [("sm_100a", (9, 0), "10.0"), ("sm_100a", (10, 3), "10.0"), ("sm_100f", (12, 0), "10.0 or 10.3")],
)
def test_on_another_device(
    arch: str, capability: tuple[int, int], needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_device(monkeypatch, "NVIDIA Something", capability)
    major, minor = capability
    with pytest.raises(NotImplementedError) as refused:
        program(AFFINE, arch)(*arguments())
    assert re.fullmatch(
        wording(
            "kernels.gpu-unsuitable",
            kernel="tests.affine",
            arch=arch,
            needed=f"{needs}; NVIDIA Something has {major}.{minor}",
        ),
        str(refused.value),
    )


def test_current_stream_of_a_device_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_device(monkeypatch, "NVIDIA B200", (10, 0))
    assert cuda_launch.current(program(AFFINE)) == (torch.device("cuda", 0), 0x5150)


class MockEngine:
    """Where CuTe DSL's loader would link the host object against the CUDA runtime: linked against the
    simulator's runtime instead, which records launches."""

    runtime: Any = None

    def __init__(self, data: bytes, libraries: list[str], use_jit_link: bool) -> None:
        from gdnbench.sim.host import loader

        self.code = loader.load_host_object(data, MockEngine.runtime)

    def lookup(self, name: str) -> int:
        """The address of a function or of a constant, such as the signature that the object carries."""
        return int(self.code.engine.get_global_value_address(name))


@pytest.fixture
def cuda_launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What programs launch on CUDA, without any: tensors are on the CPU, and the stream is 0x5150."""
    import cuda.bindings.runtime as cuda_runtime
    from cutlass.base_dsl.export.external_binary_module import ExternalBinaryModule

    from gdnbench.sim.host import loader
    from gdnbench.sim.host.device import device_for
    from gdnbench.sim.host.runtime import Runtime
    from gdnbench.sim.ptx import parse

    # Sources of other kernels come as the test's parameter.
    module = parse(program(getattr(request, "param", AFFINE)).ptx)
    MockEngine.runtime = Runtime(
        module.text,
        device_for(module.target),
        lambda entry: [param.size for param in module.kernels[entry].params],
    )
    monkeypatch.setattr(ExternalBinaryModule.load_provider, "execution_engine_constructor", MockEngine)
    one_device = (cuda_runtime.cudaError_t.cudaSuccess, 1)
    monkeypatch.setattr(cuda_runtime, "cudaGetDeviceCount", lambda: one_device)
    monkeypatch.setattr(cuda_launch, "current", lambda compiled: (torch.device("cpu"), 0x5150))
    monkeypatch.setattr(loader._running, "runtime", MockEngine.runtime, raising=False)
    monkeypatch.setattr(cuda_launch, "_functions", {})
    yield MockEngine.runtime.launches
    cuda_launch._functions.clear()


def test_cuda_launch_is_the_simulated_launch(cuda_launches: list[Any]) -> None:
    """All of the CUDA path runs: `Program.__call__`, our packing, CuTe DSL's loader and executor, the
    object's own machine code, its tensor map encoding and launch. Only the CUDA runtime's entry points, which
    the object calls, are the simulator's. The simulator packs the same arguments with code of its own. Both
    must hand the same launch to the runtime: kernel, grid, block, shared memory, and every parameter's bytes.
    """
    from gdnbench.sim.host import capture_launches

    given = arguments()
    program(AFFINE)(*given)
    (mine,) = cuda_launches
    (simulated,) = capture_launches(program(AFFINE), given).requests
    assert mine.entry == simulated.entry
    assert (mine.grid, mine.block, mine.cluster) == (simulated.grid, simulated.block, simulated.cluster)
    assert (mine.grid, mine.block) == ((2, 1, 1), (COLUMNS, 1, 1))
    assert mine.shared_bytes == simulated.shared_bytes > ROWS * COLUMNS * 4
    assert (mine.stream, simulated.stream) == (0x5150, 0)
    assert mine.registers == simulated.registers
    assert list(map(written, mine.params)) == list(map(written, simulated.params))
    addresses = {given[index].data_ptr().to_bytes(8, "little") for index in range(3)}
    assert addresses == {param[:8] for param in mine.params if param[:8] in addresses}


def written(param: bytes) -> bytes:
    """What the host code stores of a parameter; the rest is left as the stack was. Of a tensor map that are
    64 of 128 bytes, of a tensor with one dynamic extent 12 of 16: it ends in padding."""
    return param[: {128: 64, 16: 12}.get(len(param), len(param))]


PREFILL = sources.sources(1, 2, "bfloat16", None)


@pytest.mark.parametrize(
    ("cuda_launches", "source"),
    quick([(one, one) for one in PREFILL], 0, ids=[one.name for one in PREFILL]),
    indirect=["cuda_launches"],
)
def test_cuda_launch_of_the_prefill_kernels(cuda_launches: list[Any], source: Source) -> None:
    """The same of the kernels themselves."""
    from gdnbench.kernel_figures import example_arguments
    from gdnbench.sim.host import capture_launches

    compiled = program(source)
    given = example_arguments(compiled)
    compiled(*given)
    (mine,) = cuda_launches
    (simulated,) = capture_launches(compiled, given).requests
    assert (mine.entry, mine.grid, mine.block) == (simulated.entry, simulated.grid, simulated.block)
    assert (mine.shared_bytes, mine.stream) == (simulated.shared_bytes, 0x5150)
    assert list(map(written, mine.params)) == list(map(written, simulated.params))


def test_cuda_launch_depends_on_its_arguments(cuda_launches: list[Any]) -> None:
    x, bias, y, count, factor = arguments()
    compiled = program(AFFINE)
    compiled(x, bias, y, count, factor)
    compiled(x, bias, y, count=count, factor=0.25)
    compiled(x.clone(), bias, y, count, factor)
    compiled(x[:40], bias, y[:40], 40, factor)
    compiled(x, bias, y, count, factor)
    first, *others, again = ([*map(written, launch.params)] for launch in cuda_launches)
    assert again == first
    assert all(other != first for other in others)
    number = bytes(ctypes.c_float(0.25))
    assert number in cuda_launches[1].params
    assert number not in first


def refusals() -> Iterator[tuple[str, Callable[[Arguments], Arguments], str]]:
    """(name, what becomes of the arguments, what the CUDA launcher says)."""
    taken = r"the kernel takes \(any, 64\) and \(64, 1\)"
    yield "few", lambda a: a[:-1], "tests.affine takes x, bias, y, count, factor; given were 4 positional"
    yield "many", lambda a: (*a, 1), "given were 6 positional arguments"
    yield (
        "dtype",
        lambda a: (a[0].double(), *a[1:]),
        wording("kernels.dtype-given", name="x", dtype="torch.float64", wanted="f32"),
    )
    yield (
        "none",
        lambda a: (a[0], None, *a[2:]),
        wording("kernels.tensor-wanted", name="bias", type="NoneType"),
    )
    yield "extent", lambda a: (a[0][:, :32].contiguous(), *a[1:]), taken
    yield "dimensions", lambda a: (a[0][0], *a[1:]), taken
    yield "strides", lambda a: (a[0].T.contiguous().T, *a[1:]), taken
    yield (
        "device",
        lambda a: (a[0].to("meta"), *a[1:]),
        wording("kernels.device-given", name="x", device="meta", wanted="cpu"),
    )
    yield (
        "align",
        lambda a: (a[0], torch.zeros(65)[1:], *a[2:]),
        wording("kernels.unaligned", name="bias", align=16),
    )
    yield (
        "real",
        lambda a: (*a[:3], 4.5, a[4]),
        wording("sim.host.argument-not-integer", name="count", value=4.5, bits=32),
    )
    yield (
        "large",
        lambda a: (*a[:3], 2**32, a[4]),
        wording("sim.host.argument-not-integer", name="count", value=4294967296, bits=32),
    )
    yield "tensor", lambda a: (*a[:4], a[1]), "factor is tensor"


@pytest.mark.parametrize(("change", "message"), [pytest.param(*case[1:], id=case[0]) for case in refusals()])
def test_cuda_refuses_arguments(
    change: Callable[[Arguments], Arguments], message: str, cuda_launches: list[Any]
) -> None:
    with pytest.raises(ArgumentError, match=message):
        program(AFFINE)(*change(arguments()))
    assert not cuda_launches


def test_cuda_refuses_what_was_compiled_in(cuda_launches: list[Any]) -> None:
    with pytest.raises(
        ArgumentError, match=wording("kernels.compiled-without", kernel="tests.affine", argument="bias")
    ):
        program(PLAIN)(*arguments())
    with pytest.raises(
        ArgumentError,
        match=wording("kernels.positional-arguments", count="given were 5", others=" and count"),
    ):
        program(AFFINE)(*arguments(), count=3)
    assert not cuda_launches


def test_values_that_an_open_extent_takes() -> None:
    extent = cuda_launch.Extent(None, bits=32, divisor=8)
    assert [value for value in (0, 4, 8, 9, 2**31 - 8, 2**31) if extent.takes(value)] == [0, 8, 2**31 - 8]
    assert cuda_launch.Extent(None, bits=64).takes(2**31)


@pytest.mark.parametrize(
    ("layout", "shape", "strides"),
    [
        ("(?,?):(?,1)", (3, 5), (7, 1)),
        ("(?,16,?{i64}):(?{i64 div=8},128,1)", (3, 16, 5), (2048, 128, 1)),
        ("(?{div=4}):(1)", (8,), (1,)),
        ("(?{i64},?):(?,?)", (2, 3), (4, 1)),
        ("(3,4):(4,1)", (3, 4), (4, 1)),
    ],
)
def test_struct_of_a_tensor_is_the_simulators(
    layout: str, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """Types that the small kernel has none of: written by two hands, to the same bytes."""
    from gdnbench.sim.host import tensor_type

    text = f'!cute.memref<f32, gmem, align<16>, "{layout}">'
    tensor = torch.zeros(10_000).as_strided(shape, strides)
    mine, simulated = cuda_launch.TensorType.parse(text), tensor_type(text)
    assert mine is not None
    assert simulated is not None
    assert bytes(mine.pack(tensor)) == simulated.pack(tensor.data_ptr(), shape, strides)
