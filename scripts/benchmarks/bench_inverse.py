# SPDX-License-Identifier: Apache-2.0
"""Methods to invert I + A, 64 x 64: how wrong they are and what they cost.

    python scripts/benchmarks/bench_inverse.py [--chunks 96] [--seed 0] [--search 20000] [--markdown]

A is that of made calls, in fp64, with gates near 0 and keys of a given correlation. Methods are emulated with
exact sums of products of rounded operands; the two in the kernels also run, in the simulator. Errors are the
worst of all chunks, against substitution in fp64: of Ai as it is handed on, before anything is stored; of a
16x16 block over the larger of its norm and that of an identity; of a diagonal block over its norm; of U in
bf16, for the same Ai. The search is for the worst A of one key, one gate and one beta <= 1 for the merge in
fp16: there the rounding of A errs the same way all along a diagonal.

mma counts m16n8k16 (tf32: m16n8k8), FMA f32 multiply-adds, of a chunk. The kernels' PTX instructions, of all
four warps and of the longest, are counted in the simulator as one matrix more costs them, without the loads
of A and stores of X; registers are those of a kernel that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from torch import Tensor

from gdnbench import sim
from gdnbench_kernels.delta_prefill.chunked import chunk_cumsum, invert
from gdnbench_kernels.gdn_inputs import Span
from gdnbench_kernels.gdn_prefill.chunked import form_a
from gdnbench_kernels.gdn_prefill.inverse import BLOCK, SIZE, WARPS
from gdnbench_kernels.gdn_prefill.synth import synth
from gdnbench_kernels.rounding import EXACT

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.kernels.inverse_kernel import VALUES, Inverse

CASES: tuple[tuple[float, Span], ...] = (
    (0.0, 1.0),
    (0.9, 0.835),
    (0.99, 1.0),
    (1.0, 1.0),
    (1.0, (0.0, 2.0)),
    (0.9, 2.0),
    (1.0, 2.0),
)
GATE_SPAN = 0.064
"""Sum of |g| over a chunk: -1e-3 a token."""

Round = Callable[[Tensor], Tensor]
Multiply = Callable[[Tensor, Tensor], Tensor]


def to(dtype: torch.dtype, x: Tensor) -> Tensor:
    return x.to(torch.float32).to(dtype).double()


f32, fp16, bf16 = (partial(to, dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16))


def tf32(x: Tensor) -> Tensor:
    """Rounded to 10 bits of mantissa, ties away from zero."""
    return ((x.float().view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32).double()


def rounded(operand: Round) -> Multiply:
    return lambda a, b: f32(operand(a) @ operand(b))


def split(operand: Round) -> Multiply:
    """Each factor as its rounding and the rounding of the rest; the product of two rests is left out."""

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        a_high, b_high = operand(a), operand(b)
        a_low, b_low = operand(a - a_high), operand(b - b_high)
        return f32(a_high @ b_high + a_low @ b_high + a_high @ b_low)

    return multiply


def substitution(a: Tensor) -> Tensor:
    """Right-looking, every multiply-add rounded to f32."""
    x = torch.eye(a.shape[-1], dtype=torch.float64).expand(a.shape).clone()
    for j in range(a.shape[-1] - 1):
        x[:, j + 1 :] = f32(x[:, j + 1 :] - a[:, j + 1 :, j, None] * x[:, j, None])
    return x


def newton_schulz(rounds: int, multiply: Multiply, a: Tensor) -> Tensor:
    """X = 2 X - X (I + A) X from X = I - A, whose residual squares with each round."""
    identity = torch.eye(a.shape[-1], dtype=torch.float64).expand(a.shape)
    x = f32(identity - a)
    for _ in range(rounds):
        x = f32(2 * x - multiply(x, multiply(identity + a, x)))
    return x


def merged(diagonal: Callable[[Tensor], Tensor], size: int, multiply: Multiply, a: Tensor) -> Tensor:
    """Diagonal blocks of `size` inverted by `diagonal`, then merged two by two: -(X11 A10) X00."""
    a, x = f32(a), torch.zeros_like(a)
    for at in range(0, SIZE, size):
        block = slice(at, at + size)
        x[:, block, block] = diagonal(a[:, block, block])
    while size < SIZE:
        for at in range(0, SIZE, 2 * size):
            upper, lower = slice(at, at + size), slice(at + size, at + 2 * size)
            left = multiply(x[:, lower, lower], a[:, lower, upper])
            x[:, lower, upper] = -multiply(left, x[:, upper, upper])
        size *= 2
    return x


class Kernel:
    """The kernel itself, in the simulator."""

    def __init__(self, split: bool) -> None:
        shape = (cute.sym_int(), SIZE, SIZE)
        fake = make_fake_tensor(cutlass.Float32, shape, (SIZE * SIZE, SIZE, 1), assumed_align=16)
        self.compiled = sim.compile(Inverse(1, split), fake, fake, make_fake_stream(), arch="sm_100a")

    def __call__(self, a: Tensor) -> Tensor:
        x = torch.empty_like(a, dtype=torch.float32)
        sim.launch(self.compiled, a.float(), x)
        return x.double()

    def cost(self) -> str:
        """Of one matrix more."""
        one, two = (self._launch(matrices) for matrices in (1, 2))
        mma = (two.mma_macs - one.mma_macs) // (16 * 8 * 16)
        of_warp = [
            two.timeline.ctas[0].executed[warp] - one.timeline.ctas[0].executed[warp] - 2 * VALUES
            for warp in range(WARPS)
        ]
        instructions = f"{sum(of_warp)} instructions, {max(of_warp)} in warp {of_warp.index(max(of_warp))}"
        return f"{mma} mma, {instructions}, {two.shared_bytes} B SMEM, {two.registers} registers"

    def _launch(self, matrices: int) -> Any:
        a = torch.zeros(matrices, SIZE, SIZE)
        return sim.launch(self.compiled, a, a.clone(), profile=True).launches[0]


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    invert: Callable[[Tensor], Tensor]
    cost: str


def methods() -> list[Method]:
    diagonal_fma = SIZE // BLOCK * BLOCK * BLOCK * (BLOCK - 1) // 2
    whole_fma = SIZE * SIZE * (SIZE - 1) // 2
    by_substitution = partial(merged, substitution, BLOCK)
    plain, twice = Kernel(split=False), Kernel(split=True)
    return [
        Method("exact, A in f32", lambda a: invert(f32(a), EXACT), ""),
        Method("exact, A in bf16", lambda a: invert(bf16(a), EXACT), ""),
        Method("exact, A in fp16", lambda a: invert(fp16(a), EXACT), ""),
        *(
            Method(
                f"Newton-Schulz, {rounds} rounds, {name}",
                partial(merged, partial(newton_schulz, rounds, rounded(kind)), BLOCK, rounded(kind)),
                f"{16 * rounds + 32} mma",
            )
            for kind, name in ((bf16, "bf16"), (fp16, "fp16"))
            for rounds in (3, 4, 5)
        ),
        Method("substitution of 64x64, f32", lambda a: substitution(f32(a)), f"{whole_fma} FMA"),
        Method(
            "substitution of 8x8, merge fp16",
            partial(merged, substitution, 8, rounded(fp16)),
            f"40 mma, {diagonal_fma * 7 // 15 // 2} FMA",
        ),
        Method(
            "substitution, merge bf16", partial(by_substitution, rounded(bf16)), f"32 mma, {diagonal_fma} FMA"
        ),
        Method(
            "substitution, merge tf32", partial(by_substitution, rounded(tf32)), f"64 mma, {diagonal_fma} FMA"
        ),
        Method(
            "substitution, merge fp16", partial(by_substitution, rounded(fp16)), f"32 mma, {diagonal_fma} FMA"
        ),
        Method("  the kernel", plain, plain.cost()),
        Method(
            "substitution, merge 2 x bf16",
            partial(by_substitution, split(bf16)),
            f"96 mma, {diagonal_fma} FMA",
        ),
        Method(
            "substitution, merge 2 x fp16",
            partial(by_substitution, split(fp16)),
            f"96 mma, {diagonal_fma} FMA",
        ),
        Method("  the kernel, split", twice, twice.cost()),
    ]


@dataclass(frozen=True, slots=True)
class Case:
    """Chunks with one head: A in fp64, its inverse, and what U is made of."""

    a: Tensor
    ai: Tensor
    v: Tensor
    beta: Tensor

    @staticmethod
    def make(correlation: float, beta: Span, chunks: int, seed: int) -> Case:
        """Every chunk with keys of its own: a sequence each of as many heads."""
        call = synth(
            seqlens=(SIZE,),
            heads=(chunks, chunks),
            key_correlation=correlation,
            gate_span=GATE_SPAN,
            beta=beta,
            seed=seed,
        )
        k, v, g, beta_of = (
            call.tensors[name].double().transpose(0, 1).unsqueeze(1) for name in ("k", "v", "g", "beta")
        )
        a = form_a(k, chunk_cumsum(g), beta_of, EXACT).squeeze(1)
        return Case(a, invert(a, EXACT), v.squeeze(1), beta_of.squeeze(1))

    def errors(self, x: Tensor) -> tuple[float, float, float, float]:
        """Worst chunk, worst 16x16 block, worst diagonal block, U."""
        of_block, norm = norms(blocks(x - self.ai)), norms(blocks(self.ai))
        u = bf16(f32(bf16(f32(x) * self.beta.unsqueeze(1)) @ self.v))
        exact = (self.ai * self.beta.unsqueeze(1)) @ self.v
        found = (
            norms(x - self.ai) / norms(self.ai),
            of_block / norm.clamp(min=BLOCK**0.5),
            (of_block / norm).diagonal(dim1=1, dim2=2),
            norms(u - exact) / norms(exact),
        )
        # max() of a tensor with NaN is NaN: an overflow is not hidden.
        worst = [float(error.max()) for error in found]
        return worst[0], worst[1], worst[2], worst[3]


def search(tries: int, seed: int) -> str:
    """The worst of `tries` chunks A[i,j] = size exp(gate (i - j)), half of them with beta 1."""
    generator = torch.Generator().manual_seed(seed)
    distance = (torch.arange(SIZE).unsqueeze(1) - torch.arange(SIZE)).clamp(min=0)
    method = partial(merged, substitution, BLOCK, rounded(fp16))
    worst = (0.0, "")
    for _ in range(0, tries, 1000):
        drawn = torch.rand(3, 1000, 1, 1, generator=generator, dtype=torch.float64)
        # k.k of a key that was normalised in fp32 and rounded to bf16 is 1 within 2^-9.
        square = 1 + (2 * drawn[0] - 1) / 512
        beta = 1 - 0.2 * (2 * drawn[1] - 1).clamp(min=0) ** 3
        gate = -(10 ** (-5 + 3.5 * drawn[2]))
        a = (beta * square * (gate * distance).exp()).tril(-1)
        ai = invert(a, EXACT)
        error = norms(blocks(method(a) - ai)) / norms(blocks(ai)).clamp(min=BLOCK**0.5)
        of_chunk = error.flatten(1).amax(1)
        at = int(of_chunk.argmax())
        said_so = f"k.k {square[at].item():.5f}, beta {beta[at].item():.5f}, gate {gate[at].item():.2e}"
        worst = max(worst, (float(of_chunk[at]), said_so))
    return f"worst 16x16 block of {tries} chunks of one key, merge fp16: {worst[0]:.1e}, {worst[1]}"


def norms(x: Tensor) -> Tensor:
    return x.flatten(-2).norm(dim=-1)


def blocks(x: Tensor) -> Tensor:
    return x.unflatten(2, (-1, BLOCK)).unflatten(1, (-1, BLOCK)).transpose(2, 3)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> str:
    if markdown:
        rule = "|".join("---" for _ in heads)
        return "\n".join(f"| {' | '.join(row)} |" if row else f"|{rule}|" for row in (heads, (), *rows))
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    )


def said(beta: Span) -> str:
    return f"to {beta[1]:g}" if isinstance(beta, tuple) else f"{beta:g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--search", type=int, default=20_000, metavar="TRIES")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    cases = [Case.make(*case, options.chunks, options.seed) for case in CASES]
    compared = methods()
    errors = [[case.errors(method.invert(case.a)) for case in cases] for method in compared]
    columns = [f"{correlation:g}, {said(beta)}" for correlation, beta in CASES]
    titles = ("Ai, worst chunk", "Ai, worst 16x16 block", "Ai, worst diagonal block by its own norm", "U")
    for kind, title in enumerate(titles):
        rows = [
            [method.name, *(f"{case[kind]:.1e}" for case in of_method)]
            for method, of_method in zip(compared, errors, strict=True)
        ]
        print(f"{title}\n\n{table(['correlation, beta', *columns], rows, options.markdown)}\n")
    print(
        table(["method", "cost of a chunk"], [[m.name, m.cost] for m in compared if m.cost], options.markdown)
    )
    print(f"\n{search(options.search, options.seed)}")


if __name__ == "__main__":
    main()
