// SPDX-License-Identifier: Apache-2.0
// What nvcc makes of usual CUDA C++: each kernel reads words of x and writes words of y, one row a CTA.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
#include <mma.h>

namespace cg = cooperative_groups;
using word = unsigned int;

extern "C" __global__ void softmax_rows(const float *x, float *y) {
  __shared__ float part[8];
  float own = x[blockIdx.x * 256 + threadIdx.x];
  float top = own;
  for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = top;
  __syncthreads();
  for (int i = 0; i < 8; ++i) top = fmaxf(top, part[i]);
  __syncthreads();
  float power = expf(own - top), sum = power;
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < 8; ++i) sum += part[i];
  y[blockIdx.x * 256 + threadIdx.x] = power / sum;
}

extern "C" __global__ void float_functions(const float *x, float *y) {
  float own = x[threadIdx.x], *row = y + threadIdx.x;
  row[0] = sinf(own), row[256] = cosf(own), row[512] = tanhf(own), row[768] = erff(own);
  row[1024] = logf(fabsf(own)), row[1280] = log1pf(fabsf(own)), row[1536] = expm1f(own);
  row[1792] = powf(fabsf(own), 1.37f), row[2048] = rsqrtf(fabsf(own)), row[2304] = cbrtf(own);
  row[2560] = __sinf(own), row[2816] = __expf(own), row[3072] = __logf(fabsf(own));
  row[3328] = __fdividef(1.5f, own), row[3584] = fmodf(own, 0.7f), row[3840] = sqrtf(fabsf(own));
}

extern "C" __global__ void integer_functions(const word *x, word *y) {
  word own = x[threadIdx.x], next = x[(threadIdx.x + 1) % 256], *row = y + threadIdx.x;
  long long wide = (long long)own * (int)next - own;
  unsigned long long whole = ((unsigned long long)next << 29) + own;
  row[0] = own / (next | 1), row[256] = own % (next | 1), row[512] = (int)own / 13, row[768] = (int)own % -7;
  row[1024] = wide / (int)(next | 1), row[1280] = wide % 1000003, row[1536] = whole / 10, row[1792] = whole % own;
  row[2048] = __clz(own) + __popc(next), row[2304] = __ffs(own) ^ __brev(next);
  row[2560] = __byte_perm(own, next, own & 0x7777), row[2816] = __funnelshift_l(own, next, next);
  row[3072] = __dp4a((int)own, (int)next, 5), row[3328] = __vabsdiffu4(own, next), row[3584] = __vmaxs2(own, next);
  row[3840] = __double2int_rz((double)own / (double)(next | 1) * 1e6) ^ __float_as_int((float)(own / 3.0));
}

extern "C" __global__ void half_functions(const word *x, word *y) {
  word own = x[threadIdx.x] & 0xbbffbbff, next = x[(threadIdx.x + 1) % 256] & 0xbbffbbff, *row = y + threadIdx.x;
  __half2 a = *(__half2 *)&own, b = *(__half2 *)&next, h[6] = {
      __hfma2(a, b, b), __hadd2(a, b), __h2div(a, __hadd2(b, __float2half2_rn(3.f))), h2exp(a), h2rsqrt(__habs2(a)),
      __hmax2(a, b)};
  __nv_bfloat162 c = *(__nv_bfloat162 *)&own, d = *(__nv_bfloat162 *)&next, g[4] = {
      __hfma2(c, d, d), __hmul2(c, d), __hsub2(c, d), __floats2bfloat162_rn(__low2float(a), __high2float(b))};
  for (int i = 0; i < 6; ++i) row[256 * i] = *(word *)&h[i];
  for (int i = 0; i < 4; ++i) row[256 * (6 + i)] = *(word *)&g[i];
  row[2560] = __nv_cvt_halfraw2_to_fp8x2(*(__half2_raw *)&a, __NV_SATFINITE, __NV_E4M3);
  __half2_raw back = __nv_cvt_fp8x2_to_halfraw2(own & 0x7b7b, __NV_E5M2);
  row[2816] = *(word *)&back;
  row[3072] = __nv_cvt_float2_to_fp8x2(make_float2(__low2float(a), __high2float(b)), __NV_SATFINITE, __NV_E5M2);
}

// A table in local memory, a switch, a function that is called, and a loop whose length differs by lane.
__noinline__ __device__ word mixed(word value, word by) { return (value ^ by) * 2654435761u; }

extern "C" __global__ void control_flow(const word *x, word *y) {
  word table[16], own = x[threadIdx.x], sum = 0;
  for (word i = 0; i < 16; ++i) table[(i * 5 + own) % 16] = mixed(own, i);
  for (word i = 0; i < own % 37; ++i) {
    switch ((own >> (i % 24)) % 6) {
      case 0: sum += table[i % 16]; break;
      case 1: sum ^= table[(i + 3) % 16]; break;
      case 2: sum = mixed(sum, own); break;
      case 3: sum -= own; continue;
      case 4: sum = sum << 3 | sum >> 29; break;
      default: table[i % 16] = sum;
    }
    if (sum % 11 == 3) break;
  }
  y[threadIdx.x] = sum;
  y[256 + threadIdx.x] = __activemask();
}

extern "C" __global__ void block_scan(const word *x, word *y) {
  __shared__ word ends[8];
  word own = x[blockIdx.x * 256 + threadIdx.x], lane = threadIdx.x % 32;
  for (int step = 1; step < 32; step *= 2) {
    word left = __shfl_up_sync(~0u, own, step);
    if (lane >= step) own += left;
  }
  if (lane == 31) ends[threadIdx.x / 32] = own;
  __syncthreads();
  for (word warp = 0; warp < threadIdx.x / 32; ++warp) own += ends[warp];
  y[blockIdx.x * 256 + threadIdx.x] = own;
}

extern "C" __global__ void staged_copies(const uint4 *x, uint4 *y) {
  __shared__ uint4 stage[2][128];
  uint4 sum = {};
  __pipeline_memcpy_async(&stage[0][threadIdx.x], x + threadIdx.x, 16);
  __pipeline_commit();
  for (int tile = 0; tile < 4; ++tile) {
    if (tile < 3)
      __pipeline_memcpy_async(&stage[(tile + 1) % 2][threadIdx.x], x + (tile + 1) * 128 + threadIdx.x, 16);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    uint4 other = stage[tile % 2][127 - threadIdx.x];
    sum.x += other.w, sum.y ^= other.z, sum.z -= other.y, sum.w += other.x * tile;
    __syncthreads();
  }
  y[threadIdx.x] = sum;
}

extern "C" __global__ void wmma_product(const __nv_bfloat16 *x, float *y) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major> a;
  fragment<matrix_b, 16, 16, 16, __nv_bfloat16, col_major> b;
  fragment<accumulator, 16, 16, 16, float> c;
  fill_fragment(c, 0.5f);
  for (int k = 0; k < 64; k += 16) {
    load_matrix_sync(a, x + k, 64);
    load_matrix_sync(b, x + 1024 + k, 64);
    mma_sync(c, a, b, c);
  }
  for (int i = 0; i < c.num_elements; ++i) c.x[i] *= 0.25f;
  store_matrix_sync(y, c, 16, mem_row_major);
}

// Each CTA counts its words in a histogram of which every CTA of the cluster has a part.
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_histogram(const word *x, word *y) {
  __shared__ word counts[64];
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x < 64) counts[threadIdx.x] = 0;
  cluster.sync();
  for (int i = 0; i < 4; ++i) {
    word bin = x[(blockIdx.x * 4 + i) * 128 + threadIdx.x] % 256;
    atomicAdd(cluster.map_shared_rank(counts, bin / 64) + bin % 64, 1);
  }
  cluster.sync();
  if (threadIdx.x < 64) y[blockIdx.x * 64 + threadIdx.x] = counts[threadIdx.x] << 8 | cluster.block_rank();
}

extern "C" __global__ void __cluster_dims__(2, 2, 1) cluster_sum(const float *x, float *y) {
  __shared__ float mine[128];
  cg::cluster_group cluster = cg::this_cluster();
  word place = blockIdx.y * gridDim.x + blockIdx.x;
  mine[threadIdx.x] = x[place * 128 + threadIdx.x];
  cluster.sync();
  float sum = 0;
  for (word rank = 0; rank < cluster.num_blocks(); ++rank)
    sum = sum * 0.5f + cluster.map_shared_rank(mine, rank)[(threadIdx.x + rank) % 128];
  cluster.sync();
  y[place * 128 + threadIdx.x] = sum;
}

extern "C" __global__ void before(const word *x, word *y) {
  cudaTriggerProgrammaticLaunchCompletion();
  for (int i = 0; i < 4; ++i) __nanosleep(100000);
  y[blockIdx.x * 128 + threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x] * 3;
}

extern "C" __global__ void after(const word *x, word *y) {
  cudaGridDependencySynchronize();
  word place = blockIdx.x * 128 + threadIdx.x;
  y[512 + place] = y[511 - place] + x[place];
}
