# SPDX-License-Identifier: Apache-2.0
"""128-bit digests of a tensor's rows: equal for equal bytes, and computed where the tensor is.

A row's bytes in row-major order are little-endian words w[j] of 32 bits, the last one padded with zeros:

    digest = (h0, h1),  h[a] = sum over j of w[j] * K(2 j + a) modulo 2**64,  K(n) = splitmix64's output n

K(n) is the finaliser of (n + 1) times the golden ratio. A row of zeros has the digest (0, 0). The words have
32 bits and the sums 64: with words of 64 bits, a change of the highest bits of two words would cancel. The
sum is linear and has no secret: a digest finds wrong rows and is no protection against an adversary.

With `sample` s, an odd number, only each s-th group of 32 words (128 bytes) counts: groups 0, s, 2 s, ...
Digests of different samples cannot be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gdnbench.bits import Bits
    from gdnbench.digest_kernel import JobTable

GROUP_WORDS = 32
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BLOCK_WORDS = 1 << 21  # 16 MiB of 64-bit products at a time

Digests = NDArray[np.uint64]
"""[n, 2]."""


def check_sample(sample: int) -> None:
    """BadInputError unless `sample` is an odd number of at least 1."""
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 1 or sample % 2 == 0:
        raise BadInputError(f"a digest's sample must be an odd number, 1 for all bytes; it is {sample!r}")


@overload
def row_digests(rows: Bits, sample: int = 1) -> Digests: ...
@overload
def row_digests(rows: Tensor, sample: int = 1) -> Tensor: ...
def row_digests(rows: Bits | Tensor, sample: int = 1) -> Digests | Tensor:
    """The digests of the rows of axis 0.

    `rows`: bits [n, ...] of `gdnbench.bits`, or a tensor of a dtype that can be stored. Returns uint64 [n, 2]
    for bits, and int64 [n, 2] with the same 128 bits on the tensor's device for a tensor. BadInputError for a
    `sample` that is no odd number.
    """
    if not isinstance(rows, np.ndarray):
        return indexed_digests(rows, None, sample)
    check_sample(sample)
    out = np.empty((len(rows), 2), dtype=np.uint64)
    _fill(rows, out, sample)
    return out


def indexed_digests(pool: Tensor, index: Tensor | None, sample: int = 1, out: Tensor | None = None) -> Tensor:
    """The digests of rows `index` of `pool` [slots, ...], int64 [n, 2] on the pool's device.

    `index`: int32 or int64 [n] on the pool's device; None for all rows. A number that is no row gives (0, 0):
    whoever knows the numbers knows which digests say nothing. On CUDA nothing waits for the device, and no
    row is copied where triton is installed. `out`: int64 [n, 2], contiguous, to fill and return.
    """
    import torch

    check_sample(sample)
    count = pool.shape[0] if index is None else index.numel()
    if out is None:
        out = torch.empty((count, 2), dtype=torch.int64, device=pool.device)
    if count == 0:
        return out
    if pool.shape[0] == 0 or pool[0].numel() == 0:
        return out.zero_()
    if pool.device.type == "cpu":
        _fill_on_cpu(pool, index, out, sample)
    elif not _on_cuda(pool, index, out, sample):
        _fill_in_blocks(pool, index, out, sample)
    return out


class RowsJob(NamedTuple):
    """Digests of rows `numbers` (int32 or int64 [n]) of `pool`, to be written as int64 [n, 2]."""

    pool: Tensor
    numbers: Tensor
    at: int  # the byte of the output


class CopyJob(NamedTuple):
    """The elements of `source`, to be written in row-major order."""

    source: Tensor
    at: int


class Jobs:
    """Digests and copies that are written again and again into one block of memory or another: in one launch
    on CUDA where triton is installed, but for rows and tensors that its kernel cannot read."""

    def __init__(
        self,
        jobs: Sequence[RowsJob | CopyJob],
        sample: int,
        to_device: Callable[[Tensor, torch.device], Tensor],
    ) -> None:
        """`to_device` copies the kernel's table. The tensors of `jobs` are on one device."""
        self._sample = sample
        self._table, self._alone = _job_table(jobs, sample, to_device)

    @property
    def holds_nothing(self) -> bool:
        """Whether the tensors of the jobs are not kept, but where they are: whoever runs the jobs keeps
        them."""
        return not self._alone

    def run(self, memory: Tensor, start: int = 0) -> None:
        """Queue the jobs on the current stream. `memory`: uint8 [n]; the jobs' outputs begin at its byte
        `start`, a multiple of 256, and are zero."""
        if self._table is not None:
            self._table.run(memory, start)
        if self._alone:
            self._run_alone(memory[start:])

    def bound(self, memory: Tensor, start: int, stream: int) -> Callable[[], Any]:
        """`run(memory, start)` for when `stream`, a stream's address, is the current one, with less left to
        do."""
        found = None
        if self._table is not None and not self._alone:
            found = self._table.bound(memory.data_ptr() + start, stream)
        return partial(self.run, memory, start) if found is None else found

    def _run_alone(self, memory: Tensor) -> None:
        import torch

        for job in self._alone:
            if isinstance(job, CopyJob):
                _view(memory, job.at, job.source.dtype, job.source.shape).copy_(job.source)
            else:
                out = _view(memory, job.at, torch.int64, (job.numbers.numel(), 2))
                indexed_digests(job.pool, job.numbers, self._sample, out)


def _job_table(
    jobs: Sequence[RowsJob | CopyJob], sample: int, to_device: Callable[[Tensor, torch.device], Tensor]
) -> tuple[JobTable | None, list[RowsJob | CopyJob]]:
    """The table of the jobs that the kernel can do, and the others."""
    first = next((job.pool for job in jobs if isinstance(job, RowsJob)), None)
    if first is None or not first.is_cuda or _kernel() is None:
        return None, list(jobs)
    import torch

    from gdnbench.digest_kernel import JobTable, copy_job, grid_of_jobs, rows_job

    rows, alone = [], []
    for job in jobs:
        row = copy_job(*job) if isinstance(job, CopyJob) else rows_job(*job)
        if row is None:
            alone.append(job)
        else:
            rows.append(row)
    if not rows:
        return None, alone
    return JobTable(to_device(torch.tensor(rows), first.device), *grid_of_jobs(rows, sample), sample), alone


def _view(memory: Tensor, at: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """A contiguous tensor in `memory` (uint8 [n]) from byte `at`."""
    return memory[at : at + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def _on_cuda(pool: Tensor, index: Tensor | None, out: Tensor, sample: int) -> bool:
    fill = _kernel() if pool.is_cuda else None
    return fill is not None and fill(pool, index, out, sample)


@cache
def _kernel() -> Callable[[Tensor, Tensor | None, Tensor, int], bool] | None:
    try:
        from gdnbench.digest_kernel import fill_digests
    except ImportError:
        return None  # without triton, torch's own operations make the digests
    return fill_digests


def splitmix64(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """K of the module's formula."""
    z = (numbers + np.uint64(1)) * np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    found: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return found


@lru_cache(maxsize=16)
def _weights(groups: int, sample: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """K(2 j) and K(2 j + 1) of the words of the groups that count, each [counted, GROUP_WORDS]."""
    first = GROUP_WORDS * np.arange(0, groups, sample, dtype=np.int64)
    j = (first[:, None] + np.arange(GROUP_WORDS, dtype=np.int64)).astype(np.uint64)
    return splitmix64(j + j), splitmix64(j + j + np.uint64(1))


def _fill(rows: Bits, out: Digests, sample: int) -> None:
    """`rows` [n, ...], in blocks."""
    if rows.size == 0:
        out[:] = 0
        return
    flat = rows.reshape(len(rows), -1)
    groups = _groups(flat.shape[1] * flat.itemsize)
    weights = _weights(groups, sample)
    block = max(1, _BLOCK_WORDS // (groups * GROUP_WORDS))
    for start in range(0, len(flat), block):
        counted = _words_of(flat[start : start + block], groups)[:, ::sample]
        part = out[start : start + block]
        for half in (0, 1):
            np.einsum("igw,gw->i", counted, weights[half], dtype=np.uint64, out=part[:, half])


def _groups(row_bytes: int) -> int:
    return -(-row_bytes // (4 * GROUP_WORDS))


def _words_of(rows: Bits, groups: int) -> NDArray[np.uint32]:
    """Each row's bytes as words [n, groups, GROUP_WORDS], padded with zeros; a view if possible."""
    octets = np.ascontiguousarray(rows).view(np.uint8)
    size = 4 * GROUP_WORDS * groups
    if octets.shape[1] != size or octets.ctypes.data % 4:
        padded = np.zeros((len(rows), size), dtype=np.uint8)
        padded[:, : octets.shape[1]] = octets
        octets = padded
    return octets.view(np.dtype("<u4")).reshape(len(rows), groups, GROUP_WORDS)


def _fill_on_cpu(pool: Tensor, index: Tensor | None, out: Tensor, sample: int) -> None:
    from gdnbench.bits import as_integers, to_bits

    digests = out.numpy().view(np.uint64)
    block = max(1, 4 * _BLOCK_WORDS // (pool[0].numel() * pool.element_size()))
    if index is None:
        # A block at a time: `to_bits` copies what is not contiguous.
        for start in range(0, len(pool), block):
            _fill(to_bits(pool[start : start + block]), digests[start : start + block], sample)
        return
    import torch

    numbers = index.reshape(-1).long()
    inside = (numbers >= 0) & (numbers < pool.shape[0])
    bits = as_integers(pool.detach())  # index_select takes no fp8
    for start in range(0, len(numbers), block):
        place = slice(start, start + block)
        rows = torch.index_select(bits, 0, numbers[place].clamp(0, pool.shape[0] - 1))
        _fill(to_bits(rows), digests[place], sample)
    digests[~inside.numpy()] = 0


def _fill_in_blocks(pool: Tensor, index: Tensor | None, out: Tensor, sample: int) -> None:
    """By torch's operations on any device, which a CUDA graph can hold: some rows at a time, gathered."""
    import torch

    from gdnbench.bits import as_integers

    octets = pool[0].numel() * pool.element_size()
    groups = _groups(octets)
    first, second = _device_weights(groups, sample, pool.device)
    numbers = None if index is None else index.reshape(-1).long()
    bits = as_integers(pool)  # index_select takes no fp8
    block = max(1, _BLOCK_WORDS // (groups * GROUP_WORDS))
    for start in range(0, len(out), block):
        part = out[start : start + block]
        if numbers is None:
            rows = bits[start : start + block]
        else:
            chosen = numbers[start : start + block]
            rows = bits.index_select(0, chosen.clamp(0, pool.shape[0] - 1))
        flat = rows.reshape(len(part), -1).contiguous().view(torch.uint8)
        padded = torch.nn.functional.pad(flat, (0, 4 * GROUP_WORDS * groups - octets)).contiguous()
        words = padded.view(torch.int32).view(len(part), groups, GROUP_WORDS)[:, ::sample]
        found = words.reshape(len(part), -1).long().bitwise_and(0xFFFFFFFF)
        torch.sum(found * first, dim=1, out=part[:, 0])
        torch.sum(found * second, dim=1, out=part[:, 1])
        if numbers is not None:
            part.masked_fill_(((chosen < 0) | (chosen >= pool.shape[0]))[:, None], 0)


def _device_weights(groups: int, sample: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`_weights` as int64 [counted words], made on the device each time: in a CUDA graph nothing may come
    from the host, and a kept tensor would be of the graph's memory."""
    import torch

    first = GROUP_WORDS * torch.arange(0, groups, sample, dtype=torch.int64, device=device)
    j = (first[:, None] + torch.arange(GROUP_WORDS, device=device)).reshape(-1)
    return _splitmix64_in_torch(2 * j), _splitmix64_in_torch(2 * j + 1)


def _splitmix64_in_torch(numbers: Tensor) -> Tensor:
    """`splitmix64` in int64; torch's shift repeats the sign."""

    def shifted(z: Tensor, by: int) -> Tensor:
        return (z >> by).bitwise_and((1 << (64 - by)) - 1)

    z = (numbers + 1) * _signed(_GOLDEN)
    z = (z ^ shifted(z, 30)) * _signed(_MIX_1)
    z = (z ^ shifted(z, 27)) * _signed(_MIX_2)
    return z ^ shifted(z, 31)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
