// SPDX-License-Identifier: Apache-2.0
// FlashInfer's checkpointing_ssu_kernel of Mamba2 as a device function, with the parameters that its host code
// gives it: one sequence, two heads, 4 tokens in a window of 16. In place of its common.cuh, most of which is
// host code, stands what the kernel uses of it.
#define FLASHINFER_ENABLE_BF16
#define FLASHINFER_UTILS_CUH_  // macros of the host code
#define __cuda_cuda_h__        // the driver's API
#define CUDA_VERSION 13000
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
#define FLASHINFER_MAMBA_COMMON_CUH_
#define launchCheckpointingSsu __device__ launch
namespace flashinfer::mamba {
constexpr unsigned warpSize = 32;
__device__ inline float thresholded_softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }
}
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
  p.npredicted = 4, p.max_window = 16, p.dt_softplus = false;
  p.state = state, p.x = x, p.dt = dt, p.A = A, p.B = B, p.C = C, p.output = out;
  p.old_x = old_x, p.old_B = old_B, p.old_dt = old_dt, p.old_cumAdt = old_cumAdt;
  p.cache_buf_idx = buffer, p.prev_num_accepted = accepted;
  p.x_stride_token = p.out_stride_token = p.old_x_stride_token = 2 * 64, p.dt_stride_token = 2;
  p.B_stride_token = p.C_stride_token = p.old_B_stride_token = 128, p.old_B_stride_dbuf = 16 * 128;
  p.old_dt_stride_dbuf = p.old_cumAdt_stride_dbuf = 2 * 16;
  p.old_dt_stride_head = p.old_cumAdt_stride_head = 16;
  flashinfer::mamba::checkpointing::checkpointing_ssu_kernel<
      bf16, float, float, float, __half, int, void, 4, 16, 64, 128, 2, 0, 4>(p);
}
