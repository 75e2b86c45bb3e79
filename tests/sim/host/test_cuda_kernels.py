# SPDX-License-Identifier: Apache-2.0
"""What CUDA C++ compiles to: typical kernels against torch and NumPy, and what is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.run import ENGINES
from tests.sim.cuda_kernels import run, use_nvrtc
from tests.subset import quick


@pytest.fixture(autouse=True)
def nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    use_nvrtc(monkeypatch)


def integers(seed: int, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


WMMA = """
#include <mma.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
using namespace nvcuda::wmma;
template <typename T> struct Element { using type = T; };
template <> struct Element<precision::tf32> { using type = float; };

// C [M, N] = 2 (A [M, 2K] B [2K, N] + C), a warp for it all; A and B come from shared memory.
template <typename T, typename C, int M, int N, int K, typename LA, typename LB>
__device__ void gemm(const typename Element<T>::type* a, const typename Element<T>::type* b, C* c) {
    using E = typename Element<T>::type;
    __shared__ alignas(32) E left[M * K], right[K * N];
    constexpr bool rows_a = is_same<LA, row_major>::value, rows_b = is_same<LB, row_major>::value;
    fragment<accumulator, M, N, K, C> sum;
    load_matrix_sync(sum, c, N, mem_row_major);
    for (int k = 0; k < 2 * K; k += K) {
        __syncwarp();
        for (int i = threadIdx.x; i < M * K; i += 32)
            left[i] = rows_a ? a[i / K * 2 * K + k + i % K] : a[k * M + i];
        for (int i = threadIdx.x; i < K * N; i += 32)
            right[i] = rows_b ? b[k * N + i] : b[i / K * 2 * K + k + i % K];
        __syncwarp();
        fragment<matrix_a, M, N, K, T, LA> x;
        fragment<matrix_b, M, N, K, T, LB> y;
        load_matrix_sync(x, left, rows_a ? K : M);
        load_matrix_sync(y, right, rows_b ? N : K);
        mma_sync(sum, x, y, sum);
    }
    for (int i = 0; i < sum.num_elements; ++i) sum.x[i] = sum.x[i] * C(2);
    store_matrix_sync(c, sum, N, mem_row_major);
}
"""
NAMESPACE = "template <class A, class B> struct is_same { enum { value = 0 }; };\n"
NAMESPACE += "template <class A> struct is_same<A, A> { enum { value = 1 }; };\n"
# Name -> (type of A and B, of C, M, N, K, layouts of A and B, dtypes of torch).
PRODUCTS = {
    "half": ("__half", "float", 16, 16, 16, "rc", torch.float16, torch.float32),
    "half_sum": ("__half", "__half", 32, 8, 16, "cr", torch.float16, torch.float16),
    "half_wide": ("__half", "float", 8, 32, 16, "cc", torch.float16, torch.float32),
    "bfloat": ("__nv_bfloat16", "float", 8, 32, 16, "rr", torch.bfloat16, torch.float32),
    "bfloat_tall": ("__nv_bfloat16", "float", 32, 8, 16, "cc", torch.bfloat16, torch.float32),
    "tf32": ("precision::tf32", "float", 16, 16, 8, "rc", torch.float32, torch.float32),
    "doubles": ("double", "double", 8, 8, 4, "cr", torch.float64, torch.float64),
    "bytes": ("signed char", "int", 16, 16, 16, "rr", torch.int8, torch.int32),
    "unsigned_bytes": ("unsigned char", "int", 32, 8, 16, "cc", torch.uint8, torch.int32),
}


def wmma_source() -> str:
    kernels = ""
    for name, (t, c, m, n, k, layouts, *_) in PRODUCTS.items():
        element = "float" if "tf32" in t else t
        la, lb = ("row_major" if letter == "r" else "col_major" for letter in layouts)
        kernels += f'extern "C" __global__ void gemm_{name}(const {element}* a, const {element}* b, {c}* d) '
        kernels += f"{{ gemm<{t}, {c}, {m}, {n}, {k}, {la}, {lb}>(a, b, d); }}\n"
    return NAMESPACE + WMMA + kernels


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("name", "engine"), quick([(n, e) for n in PRODUCTS for e in ENGINES], 0, 1, 3, 4, 7, 9, 11, 13, 15)
)
def test_wmma(name: str, engine: str) -> None:
    """Against fp64: the bound is the rounding of the sums, that of tensor cores truncates."""
    _, _, m, n, k, layouts, kind, result = PRODUCTS[name]
    generator = torch.Generator().manual_seed(len(name))
    if kind.is_floating_point:
        a, b = (torch.randn(*shape, generator=generator).to(kind) for shape in ((m, 2 * k), (2 * k, n)))
        c = torch.randn(m, n, generator=generator).to(result)
    else:
        a, b = (integers(len(name), 0, 100, *shape, dtype=kind) for shape in ((m, 2 * k), (2 * k, n)))
        c = integers(3, -999, 999, m, n)
    if name == "tf32":  # the elements have to be tf32 already
        a, b = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b))
    exact = 2 * (a.double() @ b.double() + c.double())
    size = 2 * (a.double().abs() @ b.double().abs() + c.double().abs())
    given = [x if letter == "r" else x.T.contiguous() for x, letter in zip((a, b), layouts, strict=True)]
    report = run(wmma_source(), f"gemm_{name}", 32, *given, c, engine=engine)
    assert report.ok, report
    assert not report.findings
    # Two products a sum, each of 17 terms cut at 25 bits, and a result of 24 bits; f16 sums have 11 bits.
    step = {torch.float16: 2.0**-10, torch.float32: 2.0**-20, torch.float64: 2.0**-50}.get(result, 0.0)
    assert ((c.double() - exact).abs() <= step * size).all()


def test_a_race_on_the_operand_of_wmma_is_found() -> None:
    """Without the second __syncwarp nothing orders the stores and the loads of a fragment's elements."""
    source = wmma_source().replace("        __syncwarp();\n        fragment", "        fragment")
    a, b, c = integers(1, 0, 9, 16, 32, dtype=torch.float16), torch.ones(32, 16).half(), torch.zeros(16, 16)
    report = run(source, "gemm_half", 32, a, b, c)
    assert {finding.kind for finding in report.findings} & {"race", "a collective alone"}


KERNELS = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>

template <int N> __device__ int inclusive_scan(int v, int* sums) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int d = 1; d < 32; d *= 2) { int u = __shfl_up_sync(~0u, v, d); if (lane >= d) v += u; }
    if (lane == 31) sums[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int w = lane < N / 32 ? sums[lane] : 0;
        for (int d = 1; d < N / 32; d *= 2) { int u = __shfl_up_sync(~0u, w, d); if (lane >= d) w += u; }
        if (lane < N / 32) sums[lane] = w;
    }
    __syncthreads();
    return warp ? v + sums[warp - 1] : v;
}
extern "C" __global__ void scan(const int* x, int* y) {
    __shared__ int sums[32];
    y[threadIdx.x] = inclusive_scan<128>(x[threadIdx.x], sums);
}

extern "C" __global__ void atomics(
    __half* h, __half2* h2, __nv_bfloat16* b, __nv_bfloat162* b2, unsigned short* s, double* d, long long* l
) {
    int i = threadIdx.x;
    atomicAdd(h, __float2half(1.0f));
    atomicAdd(h2, __floats2half2_rn(1.0f, 2.0f));
    atomicAdd(b, __float2bfloat16(1.0f));
    atomicAdd(b2, __floats2bfloat162_rn(1.0f, 2.0f));
    unsigned short old = *s, seen;
    do { seen = old; old = atomicCAS(s, seen, (unsigned short)(seen + 3)); } while (old != seen);
    atomicAdd(d, 0.5);
    auto u = (unsigned long long*)l;
    atomicMin(l, (long long)-i);
    atomicAnd(u + 1, ~(1ull << i));
    atomicXor(u + 2, 3ull << i);
    atomicInc((unsigned*)(u + 3), 5u);
}

typedef float (*Function)(float);
__device__ float plus_one(float x) { return x + 1; }
__device__ float twice(float x) { return x * 2; }
__device__ float other(float x, float y) { return x - y; }
__device__ Function table[2] = {plus_one, twice};
__device__ float (*unused)(float, float) = other;
extern "C" __global__ void pointers(float* y, int n) {
    if (threadIdx.x < 20) y[threadIdx.x] = table[(threadIdx.x + n) % 2](y[threadIdx.x]);
}
extern "C" __global__ void no_function(float* y, unsigned long long f) { y[0] = ((Function)f)(y[0]); }

struct Shape { __device__ virtual float area(float x) const { return x; } };
struct Square : Shape { __device__ float area(float x) const override { return x * x; } };
extern "C" __global__ void methods(float* y) {
    Shape shape; Square square;
    const Shape* one = threadIdx.x % 3 ? &shape : &square;
    y[threadIdx.x] = one->area(y[threadIdx.x]);
}

extern "C" __global__ void simd(const unsigned* x, unsigned* y) {
    unsigned a = x[threadIdx.x], b = x[threadIdx.x + 32];
    y[4 * threadIdx.x] = __vabsdiffu4(a, b);
    y[4 * threadIdx.x + 1] = __vsadu4(a, b);
    y[4 * threadIdx.x + 2] = __vsadu2(a, b);
    y[4 * threadIdx.x + 3] = __vmaxu2(a, b);
}

extern "C" __global__ void first_sums(const float* x, float* y, int warps) {
    __shared__ float part[32];
    float v = x[threadIdx.x];
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < warps ? part[threadIdx.x] : 0.0f;
        for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
        if (threadIdx.x == 0) *y = v;
    }
}
"""


LIBRARIES = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;

extern "C" __global__ void groups(const int* x, int* y) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    int v = x[block.thread_rank()];
    int most = cg::reduce(tile, v, cg::greater<int>());
    auto odd = cg::binary_partition(cg::tiled_partition<32>(block), v & 1);
    y[block.thread_rank()] = 1000 * most + odd.size();
}

extern "C" __global__ void pipelined(const int4* x, int4* y, int n) {
    __shared__ int4 stages[2][64];
    auto pipe = cuda::make_pipeline();
    for (int k = 0, ahead = 0; k < n; ++k) {
        for (; ahead < n && ahead < k + 2; ++ahead) {
            pipe.producer_acquire();
            cuda::memcpy_async(&stages[ahead % 2][threadIdx.x], x + 64 * ahead + threadIdx.x,
                               cuda::aligned_size_t<16>(16), pipe);
            pipe.producer_commit();
        }
        if (k + 1 < n) cuda::pipeline_consumer_wait_prior<1>(pipe);
        else cuda::pipeline_consumer_wait_prior<0>(pipe);
        __syncthreads();
        int4 v = stages[k % 2][63 - threadIdx.x];
        __syncthreads();
        pipe.consumer_release();
        y[64 * k + threadIdx.x] = v;
    }
}

extern "C" __global__ void barrier(const int* x, int* y) {
    __shared__ alignas(16) int data[128];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    auto block = cg::this_thread_block();
    if (block.thread_rank() == 0) init(&bar, block.size());
    block.sync();
    cuda::memcpy_async(block, data, x, cuda::aligned_size_t<16>(sizeof(data)), bar);
    bar.arrive_and_wait();
    y[threadIdx.x] = data[127 - threadIdx.x];
}
"""


MORE = """
#include <cooperative_groups.h>
#include <cooperative_groups/scan.h>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cuda/barrier>
#include <cuda/ptx>
#include <cuda_fp4.h>
namespace cg = cooperative_groups;

extern "C" __global__ void cub_block(const int* x, int* y, int* total) {
    using Reduce = cub::BlockReduce<int, 64>;
    using Sort = cub::BlockRadixSort<int, 64, 2>;
    __shared__ union { typename Reduce::TempStorage reduce; typename Sort::TempStorage sort; } room;
    int keys[2] = {x[2 * threadIdx.x], x[2 * threadIdx.x + 1]};
    int sum = Reduce(room.reduce).Sum(keys);
    __syncthreads();
    Sort(room.sort).Sort(keys);
    if (threadIdx.x == 0) *total = sum;
    y[2 * threadIdx.x] = keys[0];
    y[2 * threadIdx.x + 1] = keys[1];
}

extern "C" __global__ void scans(const int* x, int* y) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    int v = x[threadIdx.x];
    y[threadIdx.x] = cg::exclusive_scan(tile, v) + 1000 * __syncthreads_count(v > 0);
}

extern "C" __global__ void bulk(const int* x, int* y) {
    __shared__ alignas(128) int data[128];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) {
        init(&bar, blockDim.x);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }
    __syncthreads();
    if (threadIdx.x == 0) cuda::memcpy_async(data, x, cuda::aligned_size_t<16>(sizeof(data)), bar);
    bar.arrive_and_wait();
    data[threadIdx.x] += 1;
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, y, data, sizeof(data));
        cuda::ptx::cp_async_bulk_commit_group();
        cuda::ptx::cp_async_bulk_wait_group(cuda::ptx::n32_t<0>());
    }
}

extern "C" __global__ void fp4(const float2* x, float2* y) {
    y[threadIdx.x] = float2(__nv_fp4x2_e2m1(x[threadIdx.x]));
}

extern "C" __global__ void bytes(const unsigned* a, const unsigned* b, int* d) {
    __shared__ alignas(16) unsigned tile[128];
    int t = threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(tile + 4 * t), l[4], r[2] = {b[2 * t], b[2 * t + 1]};
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(a + 4 * t));
    asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
    int c[4] = {0, 0, 0, 0};
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(l[0]), "=r"(l[1]), "=r"(l[2]), "=r"(l[3]) : "r"(to));
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
                 "{%8, %9}, {%0, %1, %2, %3};" : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(r[0]), "r"(r[1]));
    for (int i = 0; i < 4; ++i) d[(t / 4 + 8 * (i / 2)) * 8 + 2 * (t % 4) + i % 2] = c[i];
}
"""


def clean(source: str, name: str, block: int, *arguments: object, engine: str) -> None:
    report = run(source, name, block, *arguments, engine=engine)
    assert report.ok, report


SIMPLE = ("scan", "atomics", "pointers", "methods", "simd")
CASES = [(name, engine) for name in SIMPLE for engine in ENGINES]
# The interpreter's kernels need no compiling.
SHORT = [place for place, (_, engine) in enumerate(CASES) if engine == "interpreter"]


@pytest.mark.parametrize(("name", "engine"), quick(CASES, *SHORT))
def test_kernels_of_cuda(name: str, engine: str) -> None:
    globals()[f"check_{name}"](engine)


@pytest.mark.slow  # NVRTC reads the headers for seconds
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name", ["groups", "pipelined", "barrier", "cub_block", "scans", "bulk", "fp4", "bytes"]
)
def test_libraries_of_cuda(name: str, engine: str) -> None:
    globals()[f"check_{name}"](engine)


def check_scan(engine: str) -> None:
    x, y = integers(1, -99, 99, 128), torch.zeros(128, dtype=torch.int32)
    clean(KERNELS, "scan", 128, x, y, engine=engine)
    assert torch.equal(y, x.cumsum(0).int())


def check_groups(engine: str) -> None:
    x, y = integers(2, -99, 99, 64), torch.zeros(64, dtype=torch.int32)
    clean(LIBRARIES, "groups", 64, x, y, engine=engine)
    most = x.view(8, 8).amax(1).repeat_interleave(8)
    odd = (x & 1).view(2, 32).sum(1).repeat_interleave(32)
    assert torch.equal(y, (1000 * most + torch.where(x & 1 == 1, odd, 32 - odd)).int())


def check_atomics(engine: str) -> None:
    h, h2 = torch.zeros(2).half(), torch.zeros(2).half()
    b, b2 = torch.zeros(2).bfloat16(), torch.zeros(2).bfloat16()
    s, d = torch.tensor([7, 0], dtype=torch.int16), torch.zeros(1, dtype=torch.float64)
    longs = torch.tensor([5, -1, 0, 0])
    report = run(KERNELS, "atomics", 32, h, h2, b, b2, s, d, longs, engine=engine, check=False)
    assert report.ok, report
    assert h.tolist() == [32, 0]
    assert b.tolist() == [32, 0]
    assert h2.tolist() == b2.tolist() == [32, 64]
    assert s.tolist() == [7 + 3 * 32, 0]
    assert d.item() == 16
    bits = 0
    for i in range(32):
        bits ^= 3 << i
    assert longs.tolist() == [-31, -1 << 32, bits, 32 % 6]


def check_pipelined(engine: str) -> None:
    x = integers(3, -99, 99, 5, 64, 4)
    y = torch.zeros_like(x)
    clean(LIBRARIES, "pipelined", 64, x, y, 5, engine=engine)
    assert torch.equal(y, x.flip(1))


def check_barrier(engine: str) -> None:
    x, y = integers(4, -99, 99, 128), torch.zeros(128, dtype=torch.int32)
    clean(LIBRARIES, "barrier", 128, x, y, engine=engine)
    assert torch.equal(y, x.flip(0))


def check_pointers(engine: str) -> None:
    y = torch.arange(32.0)
    clean(KERNELS, "pointers", 32, y, 1, engine=engine)
    x = torch.arange(32.0)
    called = torch.where(torch.arange(32) % 2 == 0, 2 * x, x + 1)
    assert torch.equal(y, torch.where(torch.arange(32) < 20, called, x))
    report = run(KERNELS, "no_function", 1, y, 0x1234, engine=engine)
    assert [finding.kind for finding in report.findings] == ["trap"]


def check_methods(engine: str) -> None:
    y = torch.arange(32.0)
    clean(KERNELS, "methods", 32, y, engine=engine)
    x = torch.arange(32.0)
    assert torch.equal(y, torch.where(torch.arange(32) % 3 == 0, x * x, x))


def check_simd(engine: str) -> None:
    x = np.random.default_rng(5).integers(0, 1 << 32, 64, dtype=np.uint64).astype(np.uint32)
    y = np.zeros((32, 4), np.uint32)
    clean(
        KERNELS,
        "simd",
        32,
        torch.from_numpy(x.view(np.int32)),
        torch.from_numpy(y.view(np.int32)),
        engine=engine,
    )
    a, b = (half.view(np.uint8).reshape(32, 4).astype(int) for half in (x[:32], x[32:]))
    c, d = (half.view(np.uint16).reshape(32, 2).astype(int) for half in (x[:32], x[32:]))
    assert np.array_equal(y[:, 0].copy().view(np.uint8).reshape(32, 4), np.abs(a - b))
    assert np.array_equal(y[:, 1], np.abs(a - b).sum(1))
    assert np.array_equal(y[:, 2], np.abs(c - d).sum(1))
    assert np.array_equal(y[:, 3].copy().view(np.uint16).reshape(32, 2), np.maximum(c, d))


def check_cub_block(engine: str) -> None:
    x, y, total = (
        integers(6, -99, 99, 128),
        torch.zeros(128, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
    )
    clean(MORE, "cub_block", 64, x, y, total, engine=engine)
    assert torch.equal(y, x.sort().values)
    assert total.item() == x.sum()


def check_scans(engine: str) -> None:
    x, y = integers(7, -99, 99, 64), torch.zeros(64, dtype=torch.int32)
    clean(MORE, "scans", 64, x, y, engine=engine)
    before = (x.view(4, 16).cumsum(1) - x.view(4, 16)).view(64)
    assert torch.equal(y, (before + 1000 * (x > 0).sum()).int())


def check_bulk(engine: str) -> None:
    x, y = integers(8, -99, 99, 128), torch.zeros(128, dtype=torch.int32)
    clean(MORE, "bulk", 128, x, y, engine=engine)
    assert torch.equal(y, x + 1)


def check_fp4(engine: str) -> None:
    x = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    x = torch.cat([x, -x, 1.01 * x, x + 0.1]).view(-1, 2)
    y = torch.zeros_like(x)
    clean(MORE, "fp4", len(x), x, y, engine=engine)
    assert torch.equal(y.view(4, 8)[:3].abs(), x.view(4, 8)[0].expand(3, 8))
    assert torch.equal(y.view(4, 8)[3], x.view(4, 8)[0])


def check_bytes(engine: str) -> None:
    """The rows of A are 32 bytes: the matrices of `ldmatrix` are its quarters of 8 rows and 16 bytes."""
    a, b = (
        integers(seed, -128, 128, *shape, dtype=torch.int8) for seed, shape in ((9, (16, 32)), (10, (32, 8)))
    )
    tiles = a.view(2, 8, 2, 16).permute(2, 0, 1, 3).contiguous()
    columns = b.view(2, 4, 4, 8).permute(3, 1, 0, 2).contiguous()
    d = torch.zeros(16, 8, dtype=torch.int32)
    clean(MORE, "bytes", 32, tiles.view(torch.int32), columns.view(torch.int32), d, engine=engine)
    assert torch.equal(d, a.int() @ b.int())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sum_with_what_nobody_wrote_is_found(engine: str) -> None:
    """Four warps write their sums; the first warp adds up four of them, or five."""
    x, y = torch.ones(128), torch.zeros(1)
    report = run(KERNELS, "first_sums", 128, x, y, 4, engine=engine)
    assert not report.findings
    assert y.item() == 128
    report = run(KERNELS, "first_sums", 128, x, y, 5, engine=engine)
    assert [finding.kind for finding in report.findings] == ["uninitialised read"]


REFUSED = {
    "tex.1d": "f(cudaTextureObject_t t, float* y) { y[0] = tex1Dfetch<float>(t, 0); }",
    "suld.b.2d": "f(cudaSurfaceObject_t s, float* y) { y[0] = surf2Dread<float>(s, 0, 0); }",
    "malloc": "f(int* y) { int* p = (int*)malloc(64); p[3] = 1; y[0] = p[3]; free(p); }",
    "recursion": "f(int* y) { y[0] = fib(y[0]); }",
    "atom.relaxed.gpu.global.cas.b128": "f(P* p) { P zero = {0, 0}; p[1] = atomicCAS(p, zero, p[1]); }",
}
HEAD = """
struct alignas(16) P { unsigned long long a, b; };
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
"""


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    source = HEAD + 'extern "C" __global__ void ' + REFUSED[what]
    with pytest.raises(UnsupportedError, match=what):
        run(source, "f", 32, *[torch.zeros(4, dtype=torch.int64)] * (1 + ("Object_t" in source)))
