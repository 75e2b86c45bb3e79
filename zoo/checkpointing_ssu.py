"""FlashInfer's `checkpointing_ssu` (CUDA C++) for a head whose cache of tokens is full: it replays 14 tokens
into the state and appends 4. NVRTC compiles the headers, with nothing in place of those for the host."""

import struct
import sys
import tempfile
from pathlib import Path

import torch

from gdnbench.sim.cuda_source import compile_cuda
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.virtual import current_gpu

STANDARD = ("type_traits", "limits", "utility", "tuple", "cstdint", "atomic", "cmath", "array", "cstddef")
EMPTY = ("iostream", "vector", "exception", "algorithm", "cassert", "cstring", "cuda.h", "cuda_runtime.h",
         "cuda_runtime_api.h", "sstream")  # fmt: skip
SOURCE = """
#define FLASHINFER_EXCEPTION_H_
#define FLASHINFER_ERROR(message)
#define FLASHINFER_CHECK(...)
#include <cstdint>
#include <cuda_fp8.h>
constexpr int DIM = 64, DSTATE = 128, NPREDICTED = 4, MAX_WINDOW = 16, HEADS_PER_GROUP = 1, PHILOX_ROUNDS = 0;
constexpr bool ENABLE_PDL = false;
#include <flashinfer/mamba/kernel_checkpointing_ssu.cuh>
"""
TYPES = (
    "__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, __half, int, void, 4, 16, 64, 128, 1, 0, 4, 1, false"
)
KERNEL = f"flashinfer::mamba::checkpointing::checkpointing_ssu_kernel<{TYPES}>"


def compiled(root):
    with tempfile.TemporaryDirectory() as folder:
        for name in (*EMPTY, *STANDARD):
            text = f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n"
            Path(folder, name).write_text("#pragma once\n" + text * (name in STANDARD))
        data = root / "flashinfer/data"
        include = [folder, root / "nvidia/cu13/include/cccl", data / "include", data / "cutlass/include"]
        return compile_cuda(SOURCE, name=KERNEL, include=include, default_device=True)


torch.manual_seed(0)
H, F, N = torch.bfloat16, torch.float32, torch.int32
TENSORS = {
    "state": (torch.float16, 64, 128), "x": (H, 4, 64), "dt": (H, 4), "A": (F, 1), "B": (H, 4, 128),
    "C": (H, 4, 128), "D": None, "z": None, "dt_bias": None, "output": (H, 4, 64), "old_x": (H, 16, 64),
    "old_B": (H, 2, 16, 128), "old_dt": (F, 2, 16), "old_cumAdt": (F, 2, 16), "buffer": (N, 1),
    "accepted": (N, 1), "slots": None, "lengths": None, "scales": None, "seed": None,
}  # fmt: skip
held = {name: torch.randn(kind[1:]).to("cuda", kind[0]) for name, kind in TENSORS.items() if kind}
held["buffer"].zero_()
held["accepted"].fill_(14)
pointers = [held[name].data_ptr() if kind else 0 for name, kind in TENSORS.items()]
# Of the state a slot; of x, dt, B, C, output and z a sequence and a token; then those of the caches.
strides = [8192, 256, 64, 4, 1, 512, 128, 512, 128, 256, 64, 0, 0,
           1024, 64, 4096, 2048, 128, 32, 16, 16, 32, 16, 16, 0]  # fmt: skip
params = struct.pack("<8I2i?7x20Q25q", 1, 1, 64, 128, 1, 1, 4, 16, -1, 1, False, *pointers, *strides)
program = compiled(next(Path(path) for path in sys.path if Path(path, "flashinfer/data").is_dir()))
request = LaunchRequest("", program.entry, (1, 1, 1), (32, 4, 1), (1, 1, 1), 100_000, (params,), None, 0)
current_gpu().run(parse(program.ptx), [request])
