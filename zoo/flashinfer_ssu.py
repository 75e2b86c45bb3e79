# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's `checkpointing_ssu_kernel` of Mamba2, CUDA C++, on a call that writes a checkpoint: 4 tokens behind 14
in a window of 16. NVRTC has no headers of the host's standard library: those of CUDA's stand for them."""

import sys
import tempfile
from pathlib import Path

import torch

from gdnbench import sim
from gdnbench.sim.cuda_source import compile_cuda
from gdnbench.sim.host import PtxKernel
from gdnbench.sim.ptx import parse

KNOWN = "algorithm array atomic cassert climits cmath cstddef cstdint cstdlib limits tuple type_traits utility".split()
EMPTY = "cuda/std/__tuple_dir/structured_bindings.h exception iostream sstream stdlib.h stdint.h string.h".split()
SOURCE = """
#define FLASHINFER_ENABLE_BF16
#define FLASHINFER_UTILS_CUH_  // macros of the host code
#define __cuda_cuda_h__        // the driver's API
#define CUDA_VERSION 13000
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
namespace std { using string = const char*; struct ostringstream { string str(); }; }
constexpr bool ENABLE_PDL = false;
#undef __global__
#define __global__ static __device__
#include <flashinfer/mamba/kernel_checkpointing_ssu.cuh>
#undef __global__
using bf16 = __nv_bfloat16;
extern "C" __attribute__((global)) void step(
    __half* state, bf16* x, float* dt, float* A, bf16* B, bf16* C, bf16* out, bf16* old_x, bf16* old_B,
    float* old_dt, float* old_cumAdt, int* buffer, int* accepted) {
  flashinfer::mamba::checkpointing::CheckpointingSsuParams p;
  p.batch = p.ngroups = p.state_cache_size = 1, p.nheads = 2, p.dim = 64, p.dstate = 128;
  p.npredicted = 4, p.max_window = 16, p.dt_softplus = true;
  p.state = state, p.x = x, p.dt = dt, p.A = A, p.B = B, p.C = C, p.output = out;
  p.old_x = old_x, p.old_B = old_B, p.old_dt = old_dt, p.old_cumAdt = old_cumAdt;
  p.cache_buf_idx = buffer, p.prev_num_accepted = accepted;
  p.x_stride_token = p.out_stride_token = p.old_x_stride_token = 2 * 64, p.dt_stride_token = 2;
  p.B_stride_token = p.C_stride_token = p.old_B_stride_token = 128, p.old_B_stride_dbuf = 16 * 128;
  p.old_dt_stride_dbuf = p.old_cumAdt_stride_dbuf = 2 * 16, p.old_dt_stride_head = p.old_cumAdt_stride_head = 16;
  flashinfer::mamba::checkpointing::checkpointing_ssu_kernel<
      bf16, float, float, float, __half, int, void, 4, 16, 64, 128, 2, 0, 4>(p);
}
"""

with tempfile.TemporaryDirectory() as made:
    for name in (*KNOWN, *EMPTY):
        header = Path(made, name)
        header.parent.mkdir(parents=True, exist_ok=True)
        known = f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n" if name in KNOWN else ""
        header.write_text(f"#pragma once\n{known}")
    data = Path(sys.argv[1], "flashinfer/data")
    include = [data / one for one in ("include", "cutlass/include", "cccl/libcudacxx/include")]
    program = compile_cuda(SOURCE, name="step", include=[*include, made], std="c++20", default_device=True)
torch.manual_seed(0)
state = torch.randn(2, 64, 128).half()
x, B, C = torch.randn(4, 2, 64), torch.randn(4, 128), torch.randn(4, 128)
old_x, old_B = torch.randn(16, 2, 64), torch.randn(2, 16, 128)
old_dt, A = torch.rand(2, 2, 16), -torch.rand(2)
out, rest = torch.full((4, 2, 64), torch.nan).bfloat16(), [one.bfloat16() for one in (old_x, old_B)]
given = [state, x.bfloat16(), torch.rand(4, 2), A, B.bfloat16(), C.bfloat16(), out, *rest]
given += [old_dt, (A[None, :, None] * old_dt).cumsum(-1), torch.zeros(1, dtype=torch.int32), torch.full((1,), 14).int()]
kernel = PtxKernel(parse(program.ptx), program.entry, grid=(1, 1, 2), block=(32, 4, 1), shared_bytes=100_000)
report = sim.launch(kernel, *given, check=True, raises=False)
print(report)
sys.exit(any(finding.fails for finding in report.findings))
