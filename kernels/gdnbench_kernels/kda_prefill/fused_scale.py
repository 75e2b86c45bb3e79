"""The SCALE role of kernel_sm100_fused.py: K and Q times products of decays, for the levels and the state.

A thread has two neighbouring channels in half of the chunk's tokens: their decays stay in registers.
Products run over a thread's own tokens, so threads exchange only the product over each half, and for the
chunk's decay the sum of gates over each half. A warp writes 128 contiguous bytes of a row.

A factor of token i is a product of decays of consecutive tokens: of an upper half's start up to i (`up`), or
from the one after i to a lower half's end (`down`). Every decay is at most 1, so is every product.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import WorkTile
from gdnbench_kernels.gdn_prefill.gate_scan import decay, rounded_decay
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.kda_prefill.fused_plan import HALVES, LEVELS, Barrier, Pipelines, Role, Row, Shared
from gdnbench_kernels.plan import WARP
from gdnbench_kernels.warp_values import bfloats, widened

PAIR = 2
"""Channels of a thread."""
OWN = CHUNK // HALVES
"""Tokens of a thread."""


@dataclass(frozen=True)
class Mine:
    """A thread's tokens and channels, and its tokens' decays.

    A row has 128 contiguous bytes in each of a tile's columns of atoms, one after the other; the 16 bytes of
    lanes 4l .. 4l + 3 are swapped with those of 4 (l ^ row % 8). With the address computed here ptxas needs
    eight registers, one for each row of an atom, for the rows of all tiles.
    """

    first: cutlass.Int32  # token in the chunk
    word: cutlass.Int32  # of the thread's first token and two channels in `words` of a tile, in a first row
    gate: cutlass.Int32  # the same of the pairs of s_g
    r_decay: cute.Tensor  # (channel of the pair, token)

    @staticmethod
    def create(warp: Any, lane: Any) -> Mine:
        """For a thread of SCALE."""
        first, columns = OWN * (warp // HALVES), WARP // PAIR
        word = CHUNK * WARP * (warp % HALVES) + WARP * first + lane
        column = WARP * (warp % HALVES) + columns * (lane // columns)
        gate = CHUNK * column + columns * first + lane % columns
        return Mine(first, word, gate, cute.make_rmem_tensor((PAIR, OWN), cutlass.Float32))

    def anew(self) -> Mine:
        """The same, but with addresses computed anew: those of all levels would not fit in registers."""
        return Mine(self.first, blackwell.opaque(self.word), blackwell.opaque(self.gate), self.r_decay)

    def rescale(self, from_words: cute.Tensor, to_words: cute.Tensor, token: int, factor: Any) -> None:
        """Write a row's two elements times `factor`, rounded once."""
        at = (self.word ^ (4 * (token % 8))) + WARP * token
        low, high = widened(from_words[at])
        to_words[at] = bfloats(low * factor[0], high * factor[1])

    def gates(self, s_tile: cute.Tensor, token: int) -> cute.Tensor:
        """The two f32 of a row."""
        columns = WARP // PAIR
        pairs = cute.make_tensor(
            cute.recast_ptr(s_tile.iterator, dtype=cutlass.Float32).align(8),
            cute.make_layout((PAIR, cute.size(s_tile) // PAIR)),
        )
        r_pair = cute.make_rmem_tensor((PAIR,), cutlass.Float32)
        cute.autovec_copy(pairs[None, (self.gate ^ (2 * (token % 8))) + columns * token], r_pair)
        return r_pair

    def decayed(self, factor: Any, token: int) -> Any:
        """A product with the token's decays taken in."""
        return tuple(factor[c] * self.r_decay[c, token] for c in range(PAIR))


def words(s_tile: cute.Tensor) -> cute.Tensor:
    """A tile of bf16 as words of two, in the order of addresses."""
    iterator = cute.recast_ptr(s_tile.iterator, dtype=cutlass.Int32)
    return cute.make_tensor(iterator, cute.make_layout(cute.size(s_tile) // PAIR))


@dataclass(frozen=True)
class Tiles:
    """K and Q of a chunk, and their scaled copies, as `words`."""

    s_k: cute.Tensor
    s_q: cute.Tensor
    s_scaled_k: cute.Tensor
    s_scaled_q: cute.Tensor


@cute.jit
def scale(work: WorkTile, pipelines: Pipelines, shared: Shared) -> None:
    """Write the operands of all chunks."""
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) - Role.SCALE
    half = warp // HALVES
    together = pipeline.NamedBarrier(barrier_id=Barrier.SCALE, num_threads=WARP * 4)
    k, q, g = (pipe.consumer_state() for pipe in (pipelines.k, pipelines.q, pipelines.g))
    scaled, reads, ends, total = (
        pipe.producer_state() for pipe in (pipelines.scaled, pipelines.reads, pipelines.ends, pipelines.total)
    )
    for i in cutlass.range(work.chunks, unroll=1):
        lane = blackwell.lane_of_turn(i)
        thread, pair = WARP * warp + lane, WARP * (warp % 2) + lane
        mine = Mine.create(warp, lane).anew()
        length = work.stop - work.start - CHUNK * i
        sums = _load_gates(mine, pipelines, shared, g, length)
        _put_half(shared, Row.SUM, half, pair, sums)
        together.arrive_and_wait()
        pipelines.total.producer_acquire(total)
        # An accurate exponential of the sum, not the product: its error would remain in the state.
        shared.total[thread, total.index] = rounded_decay(
            shared.halves[2 * Row.SUM, thread] + shared.halves[2 * Row.SUM + 1, thread]
        )
        pipelines.total.producer_commit(total)

        tiles = Tiles(
            words(shared.k[None, None, k.index]),
            words(shared.q[None, None, q.index]),
            words(shared.scaled_k[None, None, 0]),
            words(shared.scaled_q[None, None, 0]),
        )
        pipelines.k.consumer_wait(k)
        pipelines.q.consumer_wait(q)
        for level in cutlass.range_constexpr(len(LEVELS) - 1):
            # The tiles hold Kd and Qd of the chunk before, then the level before.
            if cutlass.const_expr(level == 0):
                pipelines.reads.producer_acquire(reads)
            else:
                pipelines.scaled.producer_acquire(scaled)
            _write_level(mine.anew(), tiles, LEVELS[level])
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.scaled.producer_commit(scaled)
            scaled.advance()
        # The last level's lower half belongs to two of the warps, its upper half to the others.
        pipelines.scaled.producer_acquire(scaled)
        if half == 0:
            product = _down(mine.anew(), tiles, tiles.s_scaled_k, (0, OWN), _ones())
            _put_half(shared, Row.PRODUCT, half, pair, product)
        else:
            product = _up(mine.anew(), tiles, (0, OWN), _ones())
            _put_half(shared, Row.PRODUCT, half, pair, product)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.scaled.producer_commit(scaled)
        scaled.advance()

        together.arrive_and_wait()
        before, after = _ones(), _ones()
        other = [shared.halves[2 * Row.PRODUCT + 1 - half, PAIR * pair + c] for c in range(PAIR)]
        before = tuple(other[c] if half == 1 else before[c] for c in range(PAIR))
        after = tuple(other[c] if half == 0 else after[c] for c in range(PAIR))
        pipelines.scaled.producer_acquire(scaled)
        _up(mine.anew(), tiles, (0, OWN), before)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.reads.producer_commit(reads)
        # The fence also orders this thread's reads of Q before TMA writes the next.
        pipelines.q.consumer_release(q)
        # Ke replaces K, which products of level 0 have read: those of later levels are complete.
        _down(mine.anew(), tiles, tiles.s_k, (0, OWN), after)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.ends.producer_commit(ends)
        k.advance()
        q.advance()
        g.advance()
        reads.advance()
        ends.advance()
        total.advance()
    pipelines.scaled.producer_tail(scaled)
    pipelines.reads.producer_tail(reads)
    pipelines.total.producer_tail(total)


def _ones() -> Any:
    return tuple(cutlass.Float32(1.0) for _ in range(PAIR))


def _put_half(shared: Shared, row: Row, half: Any, pair: Any, values: Any) -> None:
    for c in range(PAIR):
        shared.halves[HALVES * row + half, PAIR * pair + c] = values[c]


@cute.jit
def _load_gates(mine: Mine, pipelines: Pipelines, shared: Shared, g: Any, length: cutlass.Int32) -> Any:
    """Fill r_decay; returns the sums of gates. Rows past the end of the sequence, `length`, do not decay.
    exp(+inf) is no decay, hence NaN."""
    pipelines.g.consumer_wait(g)
    sums = [cutlass.Float32(0.0) for _ in range(PAIR)]
    for token in cutlass.range_constexpr(OWN):
        r_g = mine.gates(shared.g[None, None, g.index], token)
        for c in cutlass.range_constexpr(PAIR):
            value = r_g[c]
            value = cutlass.Float32(float("nan")) if value == float("inf") else value
            value = value if mine.first + token < length else cutlass.Float32(0.0)
            mine.r_decay[c, token] = decay(value)
            sums[c] = sums[c] + value
    # The next gates are written through the async proxy: order this thread's reads before it.
    cute.arch.fence_proxy("async.shared", space="cta")
    pipelines.g.consumer_release(g)
    return tuple(sums)


@cute.jit
def _write_level(mine: Mine, tiles: Tiles, size: cutlass.Constexpr) -> None:
    """Write K and Q of a level whose blocks have 2 `size` tokens. Rows of Q in lower halves affect no result;
    the first level writes them so that none is uninitialised."""
    for start in cutlass.range_constexpr(0, OWN, 2 * size):
        _down(mine, tiles, tiles.s_scaled_k, (start, start + size), _ones())
        _up(mine, tiles, (start + size, start + 2 * size), _ones())
    if cutlass.const_expr(size == LEVELS[0]):
        for token in cutlass.range_constexpr(0, OWN, 2):
            mine.rescale(tiles.s_q, tiles.s_scaled_q, token, _ones())


@cute.jit
def _down(mine: Mine, tiles: Tiles, s_to: cute.Tensor, tokens: cutlass.Constexpr, factor: Any) -> Any:
    """Write K of tokens [start, stop) times `factor` and the decays of the tokens after each to s_to; returns
    `factor` times all decays."""
    for j in cutlass.range_constexpr(tokens[1] - 1, tokens[0] - 1, -1):
        mine.rescale(tiles.s_k, s_to, j, factor)
        factor = mine.decayed(factor, j)
    return factor


@cute.jit
def _up(mine: Mine, tiles: Tiles, tokens: cutlass.Constexpr, factor: Any) -> Any:
    """Write K and Q of tokens [start, stop) times `factor` and the decays up to each, its own included;
    returns `factor` times all decays."""
    for i in cutlass.range_constexpr(tokens[0], tokens[1]):
        factor = mine.decayed(factor, i)
        mine.rescale(tiles.s_k, tiles.s_scaled_k, i, factor)
        mine.rescale(tiles.s_q, tiles.s_scaled_q, i, factor)
    return factor
