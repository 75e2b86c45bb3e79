# SPDX-License-Identifier: Apache-2.0
"""NVRTC's cubin is its PTX while there is a virtual GPU; in a process of its own, which has no NVRTC yet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gdnbench.sim.cuda_source import nvrtc_paths
from gdnbench.sim.virtual.jump_table import supported

pytestmark = pytest.mark.skipif(not supported(), reason="libraries are made on Linux, x86-64 or AArch64")


@pytest.fixture
def nvrtc_environment(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """`environment`, in which NVRTC of the folder of third-party packages or of this Python is found."""
    folder = os.environ.get("GDNBENCH_THIRD_PARTY")
    if folder is not None:
        monkeypatch.setenv("CUDA_PATH", str(Path(folder) / "nvidia" / "cu13"))
    if not nvrtc_paths():
        pytest.skip("NVRTC is not installed, and GDNBENCH_THIRD_PARTY is not set")
    return {**environment, "CUDA_PATH": os.environ.get("CUDA_PATH", ""), "NVRTC": nvrtc_paths()[0]}


PROGRAM = """
import ctypes, os
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path
from gdnbench.sim.virtual.libnvrtc import nvrtc_gives_ptx

def cubin(nvrtc, program):
    size = c_size_t()
    assert nvrtc.nvrtcGetCUBINSize(program, byref(size)) == 0
    data = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetCUBIN(program, data) == 0
    return data.raw

with nvrtc_gives_ptx():
    nvrtc = ctypes.CDLL(Path(os.environ["NVRTC"]).name)
    program = c_void_p()
    source = b'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    assert nvrtc.nvrtcCreateProgram(byref(program), source, b"twice.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_100a")
    assert nvrtc.nvrtcCompileProgram(program, 1, options) == 0
    assert b".entry twice(" in cubin(nvrtc, program)
assert cubin(nvrtc, program).startswith(b"\\x7fELF")
"""


def test_a_cubin_is_the_ptx(nvrtc_environment: Mapping[str, str]) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], env=nvrtc_environment, check=True)


# As in the documentation of cuda.core: a template from NVRTC, memory from the device's pool.
CORE = """
import numpy as np
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch

SOURCE = '''
template <typename T> __global__ void add(const T* a, const T* b, T* c, size_t n) {
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x)
        c[i] = a[i] + b[i];
}
'''
device = Device()
device.set_current()
stream = device.create_stream()
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
program = Program(SOURCE, code_type="c++", options=options)
kernel = program.compile("cubin", name_expressions=("add<float>",)).get_kernel("add<float>")
host = [LegacyPinnedMemoryResource().allocate(4000) for _ in range(3)]
a, b, c = (np.from_dlpack(buffer).view(np.float32) for buffer in host)
a[:], b[:] = np.random.default_rng(0).random((2, 1000), np.float32)
memory = [device.allocate(4000, stream=stream) for _ in range(3)]
for to, source in zip(memory[:2], host[:2]):
    to.copy_from(source, stream=stream)
launch(stream, LaunchConfig(grid=4, block=256), kernel, *memory, np.uint64(1000))
memory[2].copy_to(host[2], stream=stream)
stream.sync()
assert np.array_equal(c, a + b)
"""


@pytest.mark.slow  # imports cuda.core and torch
def test_cuda_core_compiles_and_launches(nvrtc_environment: Mapping[str, str], tmp_path: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-python has wheels for Linux only")
    (tmp_path / "program.py").write_text(CORE, encoding="utf-8")
    command = [sys.executable, "-m", "gdnbench", "sim", "--sms", "4", "--", sys.executable, "program.py"]
    ran = subprocess.run(
        command, capture_output=True, text=True, env=dict(nvrtc_environment), cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
