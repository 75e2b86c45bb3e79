# SPDX-License-Identifier: Apache-2.0
"""cuda-python's driver and runtime APIs on the virtual GPU, with a kernel from PTX; NumPy has the results."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from gdnbench.sim.errors import FaultKind, KernelFault, LaunchError, UnsupportedError
from gdnbench.sim.virtual import VirtualGpu
from tests.messages import wording
from tests.sim.virtual.counting_kernel import PTX

driver: Any = pytest.importorskip("cuda.bindings.driver", reason="cuda-python has wheels for Linux only")
runtime: Any = pytest.importorskip("cuda.bindings.runtime")

COUNT = 100


def ok(result: tuple[Any, ...]) -> Any:
    assert int(result[0]) == 0
    return result[1] if len(result) == 2 else result[1:]


@pytest.fixture
def function(gpu: VirtualGpu) -> Any:
    ok(driver.cuInit(0))
    module = ok(driver.cuModuleLoadData(PTX))
    return ok(driver.cuModuleGetFunction(module, b"add"))


def launch(function: Any, params: Any) -> None:
    ok(driver.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, driver.CUstream(0), params, 0))


def pointers(*values: Any) -> tuple[Any, list[Any]]:
    """An array of addresses of the values, and what keeps them alive."""
    array = np.array([value.ctypes.data for value in values], np.uint64)
    return array.ctypes.data, [array, *values]


def test_the_device_is_described(gpu: VirtualGpu) -> None:
    device = ok(driver.cuDeviceGet(0))
    attribute = driver.CUdevice_attribute
    assert ok(driver.cuDeviceGetCount()) == 1
    assert ok(driver.cuDeviceGetName(64, device)).rstrip(b"\0") == b"NVIDIA B200"
    number = attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    assert ok(driver.cuDeviceGetAttribute(number, device)) == 3
    properties = ok(runtime.cudaGetDeviceProperties(0))
    assert (properties.major, properties.minor, properties.multiProcessorCount) == (10, 0, 3)
    assert properties.name.rstrip(b"\0") == b"NVIDIA B200"
    number = runtime.cudaDeviceAttr.cudaDevAttrMaxSharedMemoryPerBlockOptin
    assert ok(runtime.cudaDeviceGetAttribute(number, 0)) == 227 * 1024
    with pytest.raises(UnsupportedError, match=wording("sim.virtual.attribute", number=9999)):
        driver.cuDeviceGetAttribute(9999, device)


@pytest.mark.parametrize("how", ["tuple", "pointers", "config"])
def test_kernels_are_launched(gpu: VirtualGpu, function: Any, how: str) -> None:
    x = np.arange(COUNT, dtype=np.float32)
    memory = ok(driver.cuMemAlloc(x.nbytes))
    ok(driver.cuMemcpyHtoD(memory, x.ctypes.data, x.nbytes))
    numbers = [np.array([value], kind) for value, kind in ((int(memory), "u8"), (1.5, "f4"), (COUNT, "u4"))]
    address, keep = pointers(*numbers)
    if how == "tuple":
        launch(function, ((memory, 1.5, COUNT), (None, ctypes.c_float, ctypes.c_uint32)))
    elif how == "pointers":
        launch(function, address)
    else:
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = 4, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
        ok(driver.cuLaunchKernelEx(config, function, address, 0))
    del keep
    y = np.empty_like(x)
    ok(driver.cuMemcpyDtoH(y.ctypes.data, memory, y.nbytes))
    assert np.array_equal(y, x + np.float32(1.5))
    (launched,) = gpu.reports[0].launches
    assert (launched.entry, launched.grid, launched.block) == ("add", (4, 1, 1), (32, 1, 1))
    assert (gpu.reports[0].origin or "").startswith(__file__)


def test_variables_of_a_module_outlive_a_launch(gpu: VirtualGpu) -> None:
    module = ok(driver.cuModuleLoadData(PTX))
    function = ok(driver.cuModuleGetFunction(module, b"add"))
    x = torch.zeros(COUNT, device="cuda")
    for _ in range(2):
        launch(function, ((x.data_ptr(), 1.0, COUNT), (ctypes.c_void_p, ctypes.c_float, ctypes.c_uint32)))
    address, size = ok(driver.cuModuleGetGlobal(module, b"counter"))
    counter = np.zeros(1, np.uint32)
    ok(driver.cuMemcpyDtoH(counter.ctypes.data, address, size))
    assert counter[0] == 5 + 2 * COUNT
    assert x.eq(2).all()


def test_the_runtime_api_has_the_same_memory(gpu: VirtualGpu) -> None:
    x = np.arange(8, dtype=np.int32)
    y = np.empty_like(x)
    to_device, to_host = (
        runtime.cudaMemcpyKind.cudaMemcpyHostToDevice,
        runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost,
    )
    memory = ok(runtime.cudaMalloc(x.nbytes))
    ok(runtime.cudaMemset(memory, 0xFF, x.nbytes))
    ok(runtime.cudaMemcpy(memory, x.ctypes.data, x.nbytes // 2, to_device))
    ok(driver.cuMemcpyDtoH(y.ctypes.data, memory, y.nbytes))
    assert y.tolist() == [0, 1, 2, 3, -1, -1, -1, -1]
    with pytest.raises(LaunchError, match=wording("sim.virtual.no-allocation", size=36)):
        runtime.cudaMemcpy(y.ctypes.data, memory, x.nbytes + 4, to_host)
    ok(runtime.cudaFree(memory))
    with pytest.raises(LaunchError, match=wording("sim.virtual.not-allocated")):
        driver.cuMemFree(memory)


@pytest.mark.parametrize("beyond", ["count", "freed"])
def test_memory_that_is_not_allocated_is_a_fault(gpu: VirtualGpu, function: Any, beyond: str) -> None:
    x = torch.zeros(COUNT, device="cuda")
    address, count = x.data_ptr(), COUNT + (beyond == "count")
    if beyond == "freed":
        del x
    kinds = (ctypes.c_void_p, ctypes.c_float, ctypes.c_uint32)
    with pytest.raises(KernelFault) as caught:
        launch(function, ((address, 1.0, count), kinds))
    assert caught.value.kind is FaultKind.OUT_OF_BOUNDS
    assert not gpu.reports[0].ok


def test_a_graph_repeats_launches(gpu: VirtualGpu, function: Any) -> None:
    x = torch.zeros(COUNT, device="cuda")
    graph = torch.cuda.CUDAGraph()
    kinds = (ctypes.c_void_p, ctypes.c_float, ctypes.c_uint32)
    with torch.cuda.graph(graph):
        launch(function, ((x.data_ptr(), 1.0, COUNT), kinds))
    assert x.eq(0).all()
    graph.replay()
    graph.replay()
    assert x.eq(2).all()


def test_what_is_not_simulated_is_refused_by_name(gpu: VirtualGpu) -> None:
    with pytest.raises(UnsupportedError, match=wording("sim.virtual.binary", kind="a cubin")):
        driver.cuModuleLoadData(b"\x7fELF" + bytes(60))
    name = "cuda.bindings.driver.cuGraphCreate"
    with pytest.raises(UnsupportedError, match=wording("sim.virtual.function", name=name)):
        driver.cuGraphCreate(0)
    assert len(gpu.refusals) == 2
    module = ok(driver.cuModuleLoadData(PTX))
    with pytest.raises(LaunchError, match=wording("sim.virtual.no-kernel", text="sub", have="add")):
        driver.cuModuleGetFunction(module, b"sub")
