# SPDX-License-Identifier: Apache-2.0
"""Kernels in PTX and in CUDA C++, written for `gdnbench sim FILE.ptx:entry` and `FILE.cu:kernel`."""

ADD = """.version 8.8
.target sm_100a
.address_size 64

// c[i] = a[i] + b[i] for i < n
.visible .entry add(
    .param .u64 .ptr .global .align 4 add_param_0,
    .param .u64 add_param_1,
    .param .b64 add_param_2,
    .param .u32 add_param_3
)
.maxntid 256, 1, 1
{
    .reg .pred %p;
    .reg .b32 %r<5>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<4>;
    ld.param.u64 %rd1, [add_param_0];
    ld.param.u64 %rd2, [add_param_1];
    ld.param.u64 %rd3, [add_param_2];
    ld.param.u32 %r1, [add_param_3];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r2, %r2, %r3, %r4;
    setp.ge.s32 %p, %r2, %r1;
    @%p bra END;
    mul.wide.s32 %rd4, %r2, 4;
    add.s64 %rd5, %rd1, %rd4;
    add.s64 %rd6, %rd2, %rd4;
    add.s64 %rd7, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd7], %f3;
END:
    ret;
}
"""

# Writes its parameters behind each other: 8, 4, 2 and 2 bytes, then the 12 of a struct.
PACKED = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry _ZN2ns6packedIfLi3EEEvPhdfts(
    .param .u64 out, .param .f64 a, .param .f32 b, .param .u16 c, .param .s16 d, .param .align 4 .b8 e[12]
)
.reqntid 32
{
    .reg .b16 %h<3>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    ld.param.b64 %rd2, [a];
    ld.param.b32 %r1, [b];
    ld.param.b16 %h1, [c];
    ld.param.b16 %h2, [d];
    ld.param.b32 %r2, [e];
    ld.param.b32 %r3, [e+4];
    ld.param.b32 %r4, [e+8];
    st.global.b64 [%rd1], %rd2;
    st.global.b32 [%rd1+8], %r1;
    st.global.b16 [%rd1+12], %h1;
    st.global.b16 [%rd1+14], %h2;
    st.global.b32 [%rd1+16], %r2;
    st.global.b32 [%rd1+20], %r3;
    st.global.b32 [%rd1+24], %r4;
    ret;
}
"""

# Two kernels, one of them without the barrier that its exchange through shared memory needs.
TWO = """.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 4 .b8 held[];
.visible .entry mirror(.param .u64 x)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd1, %rd1, %rd2;
    ld.global.b32 %r2, [%rd1];
    shl.b32 %r3, %r1, 2;
    mov.u32 %r4, held;
    add.u32 %r3, %r3, %r4;
    st.shared.b32 [%r3], %r2;
    {barrier}
    sub.u32 %r1, 63, %r1;
    shl.b32 %r3, %r1, 2;
    add.u32 %r3, %r3, %r4;
    ld.shared.b32 %r2, [%r3];
    st.global.b32 [%rd1], %r2;
    ret;
}
.visible .entry nothing() { ret; }
"""

SUMS = """#include <cuda_fp16.h>

#include "factor.h"

#ifndef TILE
#define TILE 128
#endif

namespace sums {

// total += N * factor() * (the sum of the x)
template <typename T, int N>
__global__ void __launch_bounds__(TILE) sum(const T* x, float* total, int count) {
    __shared__ float part[TILE];
    float mine = 0;
    for (int i = blockIdx.x * TILE + threadIdx.x; i < count; i += gridDim.x * TILE) mine += float(x[i]);
    part[threadIdx.x] = mine;
    __syncthreads();
    for (int width = TILE / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
#ifndef RACE
        __syncthreads();
#endif
    }
    if (threadIdx.x == 0) atomicAdd(total, N * factor() * part[0]);
}

__global__ void histogram(const int* x, int* counts, int count) {
    extern __shared__ int local[];
    local[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) atomicAdd(&local[x[i]], 1);
    __syncthreads();
    counts[threadIdx.x] += local[threadIdx.x];
}

}  // namespace sums
"""

FACTOR = "__device__ inline float factor() { return 0.5f; }\n"
