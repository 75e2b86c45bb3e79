# SPDX-License-Identifier: Apache-2.0
"""The virtual GPU's libcuda, called through ctypes with the prototypes of CUDA's reference; NumPy has the
results. The kernel is that of the tests of cuda-python."""

from __future__ import annotations

import ctypes
import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np
import pytest

from gdnbench.sim.virtual import VirtualGpu, virtual_gpu
from gdnbench.sim.virtual.driver_api import driver_functions
from gdnbench.sim.virtual.jump_table import NULL_RESULT, shared_object, supported
from gdnbench.sim.virtual.libcuda import SONAME, provide_libcuda
from tests.messages import wording
from tests.sim.virtual.counting_kernel import PTX

Run = Callable[..., "subprocess.CompletedProcess[str]"]  # the fixture `run`

pytestmark = pytest.mark.skipif(not supported(), reason="libraries are made on Linux, x86-64 or AArch64")

COUNT = 100
INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, INVALID_DEVICE, INVALID_PTX = 1, 2, 100, 101, 218
ILLEGAL_ADDRESS, NOT_SUPPORTED = 700, 801


@pytest.fixture
def cuda(gpu: VirtualGpu) -> ctypes.CDLL:
    """libcuda, as a program finds it."""
    if not provide_libcuda():
        pytest.skip("the driver of this machine was found first")
    return ctypes.CDLL(SONAME)


def ok(result: int) -> None:
    assert result == 0


@pytest.fixture
def function(cuda: ctypes.CDLL) -> c_void_p:
    module, function = c_void_p(), c_void_p()
    ok(cuda.cuInit(0))
    ok(cuda.cuModuleLoadData(byref(module), PTX))
    ok(cuda.cuModuleGetFunction(byref(function), module, b"add"))
    return function


def on_device(cuda: ctypes.CDLL, values: np.ndarray[Any, Any]) -> c_uint64:
    memory = c_uint64()
    ok(cuda.cuMemAlloc_v2(byref(memory), c_size_t(values.nbytes)))
    ok(cuda.cuMemcpyHtoD_v2(memory, c_void_p(values.ctypes.data), c_size_t(values.nbytes)))
    return memory


def from_device(cuda: ctypes.CDLL, memory: c_uint64, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values = np.empty_like(like)
    ok(cuda.cuMemcpyDtoH_v2(c_void_p(values.ctypes.data), memory, c_size_t(values.nbytes)))
    return values


def pointers(*values: Any) -> Any:
    """The array of addresses that cuLaunchKernel takes, which keeps the values."""
    array: Any = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    array.values = values
    return array


def error_string(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    ok(cuda.cuGetErrorString(code, byref(text)))
    return (text.value or b"").decode()


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig, and the attribute of a cluster's dimensions."""

    _fields_ = (
        ("sizes", c_uint * 7),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


@pytest.mark.parametrize("how", ["pointers", "buffer", "config"])
def test_a_kernel_is_launched(cuda: ctypes.CDLL, gpu: VirtualGpu, function: c_void_p, how: str) -> None:
    x = np.arange(COUNT, dtype=np.float32)
    memory = on_device(cuda, x)
    params = pointers(memory, c_float(1.5), c_uint(COUNT))
    if how == "pointers":
        ok(cuda.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, None, params, None))
    elif how == "buffer":
        packed = ctypes.create_string_buffer(struct.pack("<QfI", memory.value, 1.5, COUNT), 16)
        size = c_size_t(16)
        extra = (c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(size), 0)
        ok(cuda.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, None, None, extra))
    else:
        cluster = (c_uint * 18)(4, 0, 2, 1, 1)  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        config = LaunchConfig((4, 1, 1, 32, 1, 1, 0), None, ctypes.addressof(cluster), 1)
        ok(cuda.cuLaunchKernelEx(byref(config), function, params, None))
    ok(cuda.cuCtxSynchronize())
    assert np.array_equal(from_device(cuda, memory, x), x + np.float32(1.5))
    (launched,) = gpu.reports[0].launches
    assert (launched.entry, launched.grid, launched.block) == ("add", (4, 1, 1), (32, 1, 1))
    assert (gpu.reports[0].origin or "").startswith(__file__)
    ok(cuda.cuMemFree_v2(memory))


def test_large_clusters_need_an_attribute_of_the_kernel(cuda: ctypes.CDLL, function: c_void_p) -> None:
    x, most = np.arange(16 * 32, dtype=np.float32), c_int()
    memory = on_device(cuda, x)
    params = pointers(memory, c_float(1.5), c_uint(x.size))
    cluster = (c_uint * 18)(4, 0, 16, 1, 1)
    config = LaunchConfig((16, 1, 1, 32, 1, 1, 0), None, ctypes.addressof(cluster), 1)
    ok(cuda.cuOccupancyMaxPotentialClusterSize(byref(most), function, byref(config)))
    assert most.value == 8
    assert cuda.cuLaunchKernelEx(byref(config), function, params, None) == INVALID_VALUE
    expected = wording("sim.virtual.cluster-not-portable", ctas=16, most=8)
    assert re.search(expected, error_string(cuda, INVALID_VALUE))
    ok(cuda.cuFuncSetAttribute(function, 14, 1))  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    ok(cuda.cuOccupancyMaxPotentialClusterSize(byref(most), function, byref(config)))
    assert most.value == 16
    ok(cuda.cuLaunchKernelEx(byref(config), function, params, None))
    ok(cuda.cuCtxSynchronize())
    assert np.array_equal(from_device(cuda, memory, x), x + np.float32(1.5))
    ok(cuda.cuMemFree_v2(memory))


def test_the_device_is_described(cuda: ctypes.CDLL) -> None:
    number, device, name = c_int(), c_int(7), ctypes.create_string_buffer(b"?" * 16, 16)
    ok(cuda.cuDeviceGetCount(byref(number)))
    assert number.value == 1
    ok(cuda.cuDeviceGet(byref(device), 0))
    assert device.value == 0
    assert cuda.cuDeviceGet(byref(device), 1) == INVALID_DEVICE
    ok(cuda.cuDeviceGetName(name, 16, device))
    assert name.value == b"NVIDIA B200"
    ok(cuda.cuDeviceGetAttribute(byref(number), 16, device))  # multiprocessors
    assert number.value == 3
    major, minor = c_int(), c_int()
    ok(cuda.cuDeviceComputeCapability(byref(major), byref(minor), device))
    assert (major.value, minor.value) == (10, 0)
    ok(cuda.cuDriverGetVersion(byref(number)))
    assert number.value >= 13000


def test_modules_have_kernels_and_variables(cuda: ctypes.CDLL, function: c_void_p) -> None:
    library, kernel, number, count = c_void_p(), c_void_p(), c_int(), c_uint()
    ok(cuda.cuLibraryLoadData(byref(library), PTX, None, None, 0, None, None, 0))
    ok(cuda.cuLibraryGetKernel(byref(kernel), library, b"add"))
    ok(cuda.cuLibraryGetKernelCount(byref(count), library))
    assert count.value == 1
    kernels = (c_void_p * 1)()
    ok(cuda.cuLibraryEnumerateKernels(kernels, 1, library))
    name = ctypes.c_char_p()
    ok(cuda.cuKernelGetName(byref(name), c_void_p(kernels[0])))
    assert name.value == b"add"
    offset, size = c_size_t(), c_size_t()
    layout = []
    for index in range(3):
        ok(cuda.cuKernelGetParamInfo(kernel, c_size_t(index), byref(offset), byref(size)))
        layout.append((offset.value, size.value))
    assert layout == [(0, 8), (8, 4), (12, 4)]
    assert cuda.cuKernelGetParamInfo(kernel, c_size_t(3), byref(offset), byref(size)) == INVALID_VALUE
    ok(cuda.cuFuncSetAttribute(function, 8, 100_000))  # dynamic shared memory
    ok(cuda.cuFuncGetAttribute(byref(number), 8, function))
    assert number.value == 100_000

    address = c_uint64()
    ok(cuda.cuLibraryGetGlobal(byref(address), byref(size), library, b"counter"))
    counter = from_device(cuda, address, np.zeros(1, np.uint32))
    assert (counter[0], size.value) == (5, 4)


def test_memory_is_filled_copied_and_described(cuda: ctypes.CDLL) -> None:
    x = np.zeros((4, 8), np.uint8)
    memory = on_device(cuda, x)
    ok(cuda.cuMemsetD8_v2(memory, 1, c_size_t(32)))
    ok(cuda.cuMemsetD16Async(c_uint64(memory.value + 16), 0x0302, c_size_t(4), None))
    expected = np.ones((4, 8), np.uint8)
    expected[2] = (2, 3) * 4
    assert np.array_equal(from_device(cuda, memory, x), expected)

    # CUDA_MEMCPY2D: 2 columns of 3 rows, from (x 2, y 1) of the device to (0, 0) of the host.
    part = np.zeros((3, 2), np.uint8)
    source = struct.pack("<QQI4xQQQQ", 2, 1, 2, 0, memory.value, 0, 8)
    to = struct.pack("<QQI4xQQQQ", 0, 0, 1, part.ctypes.data, 0, 0, 2)
    ok(cuda.cuMemcpy2D_v2(source + to + struct.pack("<QQ", 2, 3)))
    assert np.array_equal(part, expected[1:4, 2:4])

    kind, base, size = c_uint(), c_uint64(), c_size_t()
    ok(cuda.cuPointerGetAttribute(byref(kind), 2, c_uint64(memory.value + 31)))
    assert kind.value == 2  # CU_MEMORYTYPE_DEVICE
    ok(cuda.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(memory.value + 31)))
    assert (base.value, size.value) == (memory.value, 32)
    assert cuda.cuPointerGetAttribute(byref(kind), 2, c_uint64(x.ctypes.data)) == INVALID_VALUE
    ok(cuda.cuMemFree_v2(memory))
    assert cuda.cuMemFree_v2(memory) == INVALID_VALUE
    assert re.search(wording("sim.virtual.not-allocated"), error_string(cuda, INVALID_VALUE))


def test_a_tensor_map_gets_another_address(cuda: ctypes.CDLL) -> None:
    def encoded(address: int) -> Any:
        tensor_map = np.zeros(16, np.uint64)
        shape = (c_uint64 * 2)(64, 32), (c_uint64 * 1)(256), (c_uint * 2)(64, 8), (c_uint * 2)(1, 1)
        float32, no_interleave, no_swizzle, promotion, zeros = 7, 0, 0, 0, 0
        room = c_void_p(tensor_map.ctypes.data)
        flags = no_interleave, no_swizzle, promotion, zeros
        ok(cuda.cuTensorMapEncodeTiled(room, float32, 2, c_void_p(address), *shape, *flags))
        return tensor_map

    first, other = encoded(0x1000), encoded(0x2000)
    assert not np.array_equal(first, other)
    ok(cuda.cuTensorMapReplaceAddress(c_void_p(first.ctypes.data), c_void_p(0x2000)))
    assert np.array_equal(first, other)
    assert cuda.cuTensorMapReplaceAddress(c_void_p(first.ctypes.data), c_void_p(0x2008)) == INVALID_VALUE


def test_kernels_access_memory_of_the_host(cuda: ctypes.CDLL, function: c_void_p) -> None:
    pinned = c_void_p()
    ok(cuda.cuMemHostAlloc(byref(pinned), c_size_t(4 * COUNT), 0))
    own = np.zeros(COUNT, np.float32)
    ok(cuda.cuMemHostRegister_v2(c_void_p(own.ctypes.data), c_size_t(own.nbytes), 0))
    x = np.ctypeslib.as_array((c_float * COUNT).from_address(pinned.value or 0))
    for values in (x, own):
        values[:] = 2
        params = pointers(c_uint64(values.ctypes.data), c_float(1), c_uint(COUNT))
        ok(cuda.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, None, params, None))
        assert (values == 3).all()
    kind = c_uint()
    ok(cuda.cuPointerGetAttribute(byref(kind), 2, c_uint64(pinned.value or 0)))
    assert kind.value == 1  # CU_MEMORYTYPE_HOST
    ok(cuda.cuMemHostUnregister(c_void_p(own.ctypes.data)))
    ok(cuda.cuMemFreeHost(pinned))


def test_streams_call_back_and_events_have_times(cuda: ctypes.CDLL) -> None:
    called: list[int] = []
    stream, start, end, time = c_void_p(), c_void_p(), c_void_p(), c_float(-1)
    ok(cuda.cuStreamCreate(byref(stream), 0))
    for event in (start, end):
        ok(cuda.cuEventCreate(byref(event), 0))
    ok(cuda.cuEventRecord(start, stream))
    ok(cuda.cuLaunchHostFunc(stream, ctypes.CFUNCTYPE(None, c_void_p)(called.append), c_void_p(12)))
    ok(cuda.cuEventRecord(end, stream))
    ok(cuda.cuEventElapsedTime(byref(time), start, end))
    assert called == [12]
    assert time.value >= 0
    ok(cuda.cuStreamDestroy_v2(stream))


def test_errors_are_numbers_and_a_line_on_stderr(
    cuda: ctypes.CDLL, gpu: VirtualGpu, function: c_void_p, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = on_device(cuda, np.zeros(COUNT, np.float32))
    params = pointers(memory, c_float(1), c_uint(COUNT + 1))
    assert cuda.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, None, params, None) == ILLEGAL_ADDRESS
    assert "cuLaunchKernel: out-of-bounds access" in capsys.readouterr().err
    assert "out-of-bounds access" in error_string(cuda, ILLEGAL_ADDRESS)
    assert error_string(cuda, NOT_SUPPORTED) == "CUDA_ERROR_NOT_SUPPORTED"
    assert not gpu.reports[0].ok

    assert cuda.cuGraphCreate(byref(c_void_p()), 0) == NOT_SUPPORTED
    assert re.search(wording("sim.virtual.function", name="cuGraphCreate"), capsys.readouterr().err)
    assert cuda.cuModuleLoadData(byref(c_void_p()), b"\x7fELF" + bytes(60)) == NOT_SUPPORTED
    assert re.search(wording("sim.virtual.binary", kind="a cubin"), capsys.readouterr().err)
    assert len(gpu.refusals) == 2
    assert cuda.cuModuleLoadData(byref(c_void_p()), b".version 8.8\n.target sm_100a\nnothing") == INVALID_PTX
    size = c_size_t(8)
    too_short = (c_void_p * 5)(1, ctypes.addressof(memory), 2, ctypes.addressof(size), 0)
    assert cuda.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, None, None, too_short) == INVALID_VALUE
    assert re.search(wording("sim.virtual.extra-short", needed=16, size=8), capsys.readouterr().err)
    wrong = (c_void_p * 3)(3, ctypes.addressof(memory), 0)
    assert cuda.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, None, None, wrong) == INVALID_VALUE
    assert re.search(wording("sim.virtual.extra-number", number=3), capsys.readouterr().err)
    for what, call in (
        ("pointer-attribute", lambda: cuda.cuPointerGetAttribute(byref(c_uint64()), 99, memory)),
        ("limit", lambda: cuda.cuCtxGetLimit(byref(c_size_t()), 99)),
        ("pool-attribute", lambda: cuda.cuMemPoolGetAttribute(None, 99, byref(c_uint64()))),
    ):
        assert call() == NOT_SUPPORTED, what
    told = capsys.readouterr().err
    assert re.search(wording("sim.virtual.pointer-attribute", number=99), told)
    assert re.search(wording("sim.virtual.limit", number=99), told)
    assert re.search(wording("sim.virtual.pool-attribute", number=99), told)


def test_null_pointers_and_too_much_memory_are_errors(
    cuda: ctypes.CDLL, function: c_void_p, capfd: pytest.CaptureFixture[str]
) -> None:
    memory, handle = on_device(cuda, np.zeros(2)), c_void_p()
    assert cuda.cuModuleLoadData(byref(handle), None) == INVALID_VALUE
    ok(cuda.cuModuleLoadData(byref(handle), PTX))
    assert cuda.cuModuleGetFunction(byref(handle), handle, None) == INVALID_VALUE
    assert cuda.cuModuleGetFunction(byref(handle), handle, b"\xff") == INVALID_VALUE
    assert cuda.cuModuleLoadData(byref(handle), b"\xff\xfe.version") == INVALID_PTX
    assert re.search(wording("sim.virtual.module-no-text", position=0), capfd.readouterr().err)
    assert cuda.cuMemcpyHtoD_v2(memory, c_void_p(), c_size_t(16)) == INVALID_VALUE
    assert re.search(wording("sim.virtual.copy-null", size=16), capfd.readouterr().err)
    for size in (200 * 10**9, 2**63 - 1, 2**64 - 1):
        assert cuda.cuMemAlloc_v2(byref(memory), c_size_t(size)) == OUT_OF_MEMORY
        assert cuda.cuMemAllocManaged(byref(memory), c_size_t(size), 1) == OUT_OF_MEMORY
        assert cuda.cuMemHostAlloc(byref(handle), c_size_t(size), 0) == OUT_OF_MEMORY


def test_an_interrupt_reaches_the_program(
    cuda: ctypes.CDLL, gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(driver_functions(gpu), "cuCtxSynchronize", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cuda.cuCtxSynchronize()


def test_functions_are_found_by_name_and_version(cuda: ctypes.CDLL) -> None:
    def find(name: bytes, version: int) -> int:
        address, status = c_void_p(), c_int(-1)
        ok(cuda.cuGetProcAddress_v2(name, byref(address), version, c_uint64(0), byref(status)))
        assert (status.value == 0) == (address.value is not None)
        return address.value or 0

    def of(name: str) -> int:
        return ctypes.cast(getattr(cuda, name), c_void_p).value or 0

    assert find(b"cuMemAlloc", 12000) == of("cuMemAlloc_v2")
    assert find(b"cuCtxCreate", 12000) == of("cuCtxCreate_v3")
    assert find(b"cuCtxCreate", 13000) == of("cuCtxCreate_v4")
    assert find(b"cuGraphCreate", 13000) == of("cuGraphCreate")  # refused when it is called
    assert find(b"cuNoSuchFunction", 13000) == 0


def test_without_a_gpu_there_is_no_device() -> None:
    with virtual_gpu(sms=3):
        if not provide_libcuda():
            pytest.skip("the driver of this machine was found first")
        cuda = ctypes.CDLL(SONAME)
        ok(cuda.cuInit(0))
    assert cuda.cuInit(0) == NO_DEVICE
    assert error_string(cuda, NO_DEVICE) == "CUDA_ERROR_NO_DEVICE"


PROGRAM = f"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
module, function, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
assert "torch" not in sys.modules
assert not cuda.cuInit(0)
assert not cuda.cuModuleLoadData(ctypes.byref(module), {PTX!r})
assert not cuda.cuModuleGetFunction(ctypes.byref(function), module, b"add")
x = (ctypes.c_float * 100)(*range(100))
assert not cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(400))
assert not cuda.cuMemcpyHtoD_v2(memory, x, ctypes.c_size_t(400))
values = memory, ctypes.c_float(1.5), ctypes.c_uint(100)
params = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
assert not cuda.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, None, params, None)  # the launch
assert not cuda.cuMemcpyDtoH_v2(x, memory, ctypes.c_size_t(400))
assert list(x) == [i + 1.5 for i in range(100)]
"""


@pytest.mark.slow
def test_a_program_of_ctypes_alone_has_a_gpu(run: Run) -> None:
    ran = run(PROGRAM, options=("--json",))
    assert ran.returncode == 0, ran.stderr
    (launch,) = json.loads(ran.stdout)["launches"]
    line = 1 + next(number for number, text in enumerate(PROGRAM.split("\n")) if "# the launch" in text)
    assert launch["origin"].endswith(f"program.py:{line} in <module>")


ANOTHER = """
import ctypes
from gdnbench.sim.virtual.driver_api import driver_functions
from gdnbench.sim.virtual.jump_table import NULL_RESULT, JumpTable
from gdnbench.sim.virtual.libcuda import provide_libcuda
table = JumpTable("libcuda.so.1", {"cuInit": 100, "cuMemFree_v2": 0, "cuCtxGetCurrent": NULL_RESULT})
assert (table.library.cuInit(0), table.library.cuMemFree_v2(0)) == (100, 0)
context = ctypes.c_void_p(1)
assert (table.library.cuCtxGetCurrent(ctypes.byref(context)), context.value) == (0, None)
assert not provide_libcuda()
"""


@pytest.mark.slow  # a process of its own
def test_a_libcuda_that_was_loaded_before_stays() -> None:
    subprocess.run([sys.executable, "-c", ANOTHER], check=True)


FAILS = """
import os
os.memfd_create = None  # calling it fails
import gdnbench.sim.virtual.bootstrap
"""


def test_a_library_that_cannot_be_made_is_told() -> None:
    ran = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, check=True)
    assert re.search(wording("sim.virtual.no-libcuda"), ran.stderr)


def test_the_library_is_loaded_once(cuda: ctypes.CDLL) -> None:
    count = c_int()
    ok(ctypes.CDLL("libcuda.so").cuDeviceGetCount(byref(count)))  # the name without a version
    assert count.value == 1
    assert provide_libcuda()
    assert ctypes.CDLL(SONAME)._handle == cuda._handle


def test_jumps_on_aarch64_lead_to_the_table() -> None:
    """Decoded by the Arm Architecture Reference Manual: ADRP, LDR and STR (immediate, unsigned offset), BR,
    MOVZ, RET."""
    image = shared_object("libx.so", {"first": 4, "second": NULL_RESULT, "third": 0}, "aarch64")
    assert struct.unpack_from("<H", image, 18) == (183,)  # EM_AARCH64
    code = image.index(struct.pack("<I", 0xD61F0200)) - 8  # br x16
    slots = len(image) - 3 * 8
    for index in range(3):
        place = code + 16 * index
        adrp, ldr, br = struct.unpack_from("<III", image, place)
        assert (adrp & 0x9F00001F, ldr & 0xFFC003FF, br) == (0x90000010, 0xF9400210, 0xD61F0200)
        page = (place & ~0xFFF) + ((adrp >> 5 & 0x7FFFF) << 2 | adrp >> 29 & 3) * 4096
        assert page + (ldr >> 10 & 0xFFF) * 8 == slots + 8 * index
    # NULL_RESULT first: str xzr, [x0]; then mov w0, #number; ret.
    assert struct.unpack_from("<I", image, code + 48) == (0xF900001F,)
    returns = [struct.unpack_from("<II", image, code + place) for place in (52, 64, 80)]
    assert returns == [(0x52800000 | number << 5, 0xD65F03C0) for number in (0, 0, 4)]
