# SPDX-License-Identifier: Apache-2.0
"""The CUDA runtime that is linked into a module: a small one of our own, compiled here, and CuPy's."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.virtual import VirtualGpu
from gdnbench.sim.virtual.jump_table import shared_object, supported
from gdnbench.sim.virtual.linked_runtime import _write_code, replace_runtime
from tests.messages import wording
from tests.sim.third_party.apart import FOLDER, HERE, need

pytestmark = pytest.mark.skipif(
    not supported() or os.uname().machine != "x86_64", reason="a linked runtime is replaced on Linux, x86-64"
)

# A runtime that sees no driver, and a module with a function for each of those that it calls. They are
# compiled apart, so that the compiler knows nothing of the other side, as of CUDA's own.
RUNTIME = """
#include <stddef.h>
volatile int calls;
#define FAIL calls += 1; calls *= 3; return 35;
int cudaGetDeviceCount(int *count) { *count = -1; FAIL }
int cudaMalloc(void **address, size_t size) { *address = 0; FAIL }
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { FAIL }
int cudaPointerGetAttributes(void *attributes, const void *address) { FAIL }
int cudaGraphCreate(void **graph, unsigned flags) { FAIL }
int cudaGetLastError(void) { FAIL }
int cudaLaunchKernel(const void *function) { FAIL }
int cudaGetDeviceProperties(void *properties, int device) { FAIL }
const char *cudaGetErrorString(int error) { calls += 1; calls *= 3; return "old"; }
"""
MODULE = """
#include <stddef.h>
#define RUNTIME __attribute__((visibility("hidden")))
RUNTIME int cudaGetDeviceCount(int *), cudaMalloc(void **, size_t), cudaGraphCreate(void **, unsigned);
RUNTIME int cudaMemcpy(void *, const void *, size_t, int), cudaGetLastError(void);
RUNTIME int cudaPointerGetAttributes(void *, const void *);
RUNTIME int cudaLaunchKernel(const void *), cudaGetDeviceProperties(void *, int);
RUNTIME const char *cudaGetErrorString(int);
int count(int *n) { return cudaGetDeviceCount(n); }
int allocate(void **address, size_t size) { return cudaMalloc(address, size); }
int copy(void *to, const void *from, size_t size, int kind) { return cudaMemcpy(to, from, size, kind); }
int describe(void *attributes, const void *address) { return cudaPointerGetAttributes(attributes, address); }
int graph(void **made) { return cudaGraphCreate(made, 0); }
int properties(void *properties) { return cudaGetDeviceProperties(properties, 0); }
int launch(void) { return cudaLaunchKernel(0) != 801; }
int last(void) { return cudaGetLastError(); }
const char *text(int error) { return cudaGetErrorString(error); }
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    path, sources = str(tmp_path / "module.so"), [tmp_path / "runtime.c", tmp_path / "module.c"]
    for source, text in zip(sources, (RUNTIME, MODULE), strict=True):
        source.write_text(text, encoding="utf-8")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", path, *sources], check=True)
    return path


def test_a_linked_runtime_is_replaced(
    gpu: VirtualGpu,
    module: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = ctypes.CDLL(module)
    library.text.restype = ctypes.c_char_p
    number, memory = c_int(), c_void_p()
    assert (library.count(byref(number)), number.value) == (35, -1)
    replace_runtime(module)
    assert (library.count(byref(number)), number.value) == (0, 1)

    x, y = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    host_to_device, device_to_host = 1, 2
    assert library.allocate(byref(memory), c_size_t(x.nbytes)) == 0
    size = c_size_t(x.nbytes)
    assert library.copy(memory, c_void_p(x.ctypes.data), size, host_to_device) == 0
    assert library.copy(c_void_p(y.ctypes.data), memory, size, device_to_host) == 0
    assert y.tolist() == x.tolist()
    attributes = np.zeros(6, np.int32)  # type, device, address on the device, address on the host
    assert library.describe(c_void_p(attributes.ctypes.data), memory) == 0
    assert attributes[:2].tolist() == [2, 0]
    assert attributes[2:4].view(np.uint64)[0] == memory.value
    assert library.describe(c_void_p(attributes.ctypes.data), c_void_p(x.ctypes.data)) == 0
    assert attributes[:2].tolist() == [0, -2]

    properties = ctypes.create_string_buffer(1008)  # cudaDeviceProp of CUDA 13
    assert library.properties(properties) == 0
    assert properties.value == b"NVIDIA B200"
    memory_size, warp, major, minor = (
        struct.unpack_from(kind, properties, place)[0]
        for kind, place in (("Q", 288), ("i", 308), ("i", 360), ("i", 364))
    )
    assert (memory_size, warp, major, minor) == (192 * 10**9, 32, 10, 0)
    runtime = pytest.importorskip("cuda.bindings.runtime")
    monkeypatch.setattr(runtime, "CUDART_VERSION", 12090)
    assert library.properties(properties) == 801
    assert re.search(wording("sim.virtual.properties-version"), capsys.readouterr().err)

    assert library.copy(memory, c_void_p(x.ctypes.data), c_size_t(100), host_to_device) == 1
    assert re.search(wording("sim.virtual.no-allocation", size=100), library.text(1).decode())
    assert (library.last(), library.last()) == (1, 0)
    with pytest.raises(UnsupportedError, match=wording("sim.virtual.linked-kernel", name="cudaLaunchKernel")):
        library.launch()
    assert library.graph(byref(memory)) == 801
    assert re.search(wording("sim.virtual.function", name="cudaGraphCreate"), capsys.readouterr().err)


def test_a_module_without_symbols_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stripped.so"
    path.write_bytes(shared_object("stripped.so", {"cudaMalloc": 1}, "x86_64"))
    with pytest.raises(UnsupportedError, match=wording("sim.virtual.stripped-runtime", module="stripped.so")):
        replace_runtime(str(path))


def test_a_runtime_that_cannot_be_written_over_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match=wording("sim.virtual.fixed-runtime")):
        _write_code(0, b"\0")  # no page is there
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    with pytest.raises(UnsupportedError, match=wording("sim.virtual.runtime-machine", module="module.so")):
        replace_runtime("module.so")


CUPY = """
import cupy
import numpy as np

add = cupy.RawKernel('''
extern "C" __global__ void add(const float* a, const float* b, float* c) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    c[i] = a[i] + b[i];
}
''', "add")
scale = cupy.RawModule(code='''
template <typename T> __global__ void scale(T* x, T by, int n) {
    if (threadIdx.x < n) x[threadIdx.x] *= by;
}
''', options=("-std=c++17",), name_expressions=["scale<float>"]).get_function("scale<float>")
x = np.arange(25, dtype=np.float32)
a, b, c = cupy.asarray(x), cupy.asarray(2 * x), cupy.empty(25, np.float32)
add((5,), (5,), (a, b, c))
scale((1,), (32,), (c, np.float32(2), 25))
np.testing.assert_array_equal(c.get(), 6 * x)
squared = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = (x - y) * (x - y)", "squared")
np.testing.assert_array_equal(squared(a, b).get(), x * x)
np.testing.assert_array_equal((a + b).get(), 3 * x)
assert float(a.sum()) == 300
"""


@pytest.mark.slow  # compiles seven kernels with NVRTC
def test_cupy(environment: Mapping[str, str], tmp_path: Path) -> None:
    need("cupy", "with-cupy", HERE / "requirements_cupy.txt")
    packages = Path(os.environ.get(FOLDER, ""))
    added = {
        "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(packages / "with-cupy")]),
        "CUDA_PATH": str(packages / "nvidia" / "cu13"),
        "CUPY_CACHE_DIR": str(tmp_path / "cache"),
    }
    (tmp_path / "program.py").write_text(CUPY, encoding="utf-8")
    command = [sys.executable, "-m", "gdnbench", "sim", "--sms", "4", "--", sys.executable, "program.py"]
    ran = subprocess.run(
        command, capture_output=True, text=True, env={**environment, **added}, cwd=tmp_path, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
