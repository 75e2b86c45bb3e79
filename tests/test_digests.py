# SPDX-License-Identifier: Apache-2.0
"""Digests of rows: NumPy, torch on the CPU, torch's operations in blocks and the Triton kernel give the bits
of the formula, worked out in Python's integers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench import digests
from gdnbench.bits import DTYPES, to_bits
from gdnbench.digests import check_sample, indexed_digests, row_digests, splitmix64
from gdnbench.errors import BadInputError
from tests.messages import wording
from tests.seeds import drawn, fresh
from tests.sim.third_party.apart import TRITON_REQUIREMENTS, WITH_TRITON, need, triton_folder

MASK = (1 << 64) - 1


def k(n: int) -> int:
    """The (n + 1)-th output of splitmix64 from seed 0, as Vigna's splitmix64.c computes it."""
    z = (n + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def by_formula(row: bytes, sample: int) -> tuple[int, int]:
    row += b"\0" * (-len(row) % 4)
    words = [int.from_bytes(row[i : i + 4], "little") for i in range(0, len(row), 4)]
    counted = [(j, w) for j, w in enumerate(words) if j // 32 % sample == 0]
    return (
        sum(w * k(2 * j) for j, w in counted) & MASK,
        sum(w * k(2 * j + 1) for j, w in counted) & MASK,
    )


def drawn_rows(dtype: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """A tensor of any bits."""
    known = DTYPES[dtype].torch_dtype
    size = known.itemsize * math.prod(shape)
    octets = torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    flat = octets.bitwise_and(1).bool() if dtype == "bool" else octets.view(known)
    return flat.view(shape)


def unsigned(found: Tensor) -> list[tuple[int, ...]]:
    return [tuple(int(word) & MASK for word in row) for row in found.tolist()]


def test_splitmix64_gives_its_published_numbers() -> None:
    """The first outputs from seed 0, as in the test vectors of Java's SplittableRandom and xoshiro's page."""
    found = splitmix64(np.arange(3, dtype=np.uint64)).tolist()
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("seed", [0, fresh(drawn("digests"))])
@pytest.mark.parametrize("sample", [1, 3])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_all_forms_equal_the_formula(
    dtype: str, sample: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of odd sizes, of several groups, in blocks of a few rows."""
    for number, shape in enumerate([(3, 1), (2, 5, 7), (4, 67), (2, 3, 131)]):
        rows = drawn_rows(dtype, shape, seed + number)
        wanted = [by_formula(row.tobytes(), sample) for row in to_bits(rows)]
        assert [tuple(row) for row in row_digests(to_bits(rows), sample).tolist()] == wanted
        assert unsigned(row_digests(rows, sample)) == wanted
        out = torch.full((len(rows), 2), -1)
        with monkeypatch.context() as patch:
            patch.setattr(digests, "_BLOCK_WORDS", 64)
            digests._fill_in_blocks(rows, None, out, sample)
            assert unsigned(out) == wanted
            assert [tuple(row) for row in row_digests(to_bits(rows), sample).tolist()] == wanted


def test_rows_by_number() -> None:
    """Repeats, numbers that are no row, and rows whose elements do not follow each other."""
    pool = drawn_rows("bfloat16", (5, 40, 4), 1)
    index = torch.tensor([4, -1, 0, 4, 5], dtype=torch.int32)
    whole = unsigned(row_digests(pool))
    wanted = [whole[4], (0, 0), whole[0], whole[4], (0, 0)]
    strided = pool.transpose(1, 2).contiguous().transpose(1, 2)
    for one in (pool, strided):
        assert unsigned(indexed_digests(one, index)) == wanted
        out = torch.full((5, 2), -1)
        digests._fill_in_blocks(one, index, out, 1)
        assert unsigned(out) == wanted


def test_zeros_have_the_digest_zero_and_sampled_bytes_alone_count() -> None:
    pool = torch.zeros(2, 100)
    assert row_digests(pool).tolist() == [[0, 0], [0, 0]]
    pool[0, 32] = 1.0  # the second of four groups
    assert row_digests(pool, 3).tolist() == [[0, 0], [0, 0]]
    pool[0, 96] = 1.0  # the fourth
    assert row_digests(pool, 3)[0].tolist() != [0, 0]


def test_the_highest_bits_of_words_do_not_cancel() -> None:
    """With words of 64 bits they would: 2**63 (K + K') is 0 modulo 2**64 for odd weights."""
    row = torch.zeros(1, 2, dtype=torch.float64)
    other = torch.tensor([[-0.0, -0.0]], dtype=torch.float64)
    assert row_digests(row).tolist() == [[0, 0]]
    assert 0 not in row_digests(other)[0].tolist()


def test_no_rows_and_empty_rows() -> None:
    assert row_digests(torch.zeros(0, 3)).shape == (0, 2)
    assert row_digests(torch.zeros(2, 0)).tolist() == [[0, 0], [0, 0]]
    assert row_digests(np.zeros((2, 0), dtype=np.float32)).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("sample", [0, 2, True, 1.5])
def test_an_even_sample_is_refused(sample: int) -> None:
    with pytest.raises(BadInputError, match=wording("digests.sample-even", sample=sample)):
        check_sample(sample)


# What is run on a virtual GPU: pools of several forms, their rows by number, one pool or several at once.
PROGRAM = """
import json, sys
import torch
from gdnbench import digest_kernel, digests
from gdnbench.digest_kernel import bits_and_form
from tests.test_digests import drawn_rows, unsigned

def check(name, pool, index, sample):
    assert digests._kernel() is not None and bits_and_form(pool) is not None
    found = unsigned(digests.indexed_digests(pool, index.cuda(), sample).cpu())
    whole = unsigned(digests.row_digests(pool.cpu(), sample))
    wanted = [whole[i] if 0 <= i < len(whole) else (0, 0) for i in index.tolist()]
    print(json.dumps([name, found == wanted]))

seed = int(sys.argv[1])
for name, dtype, shape in json.loads(sys.argv[2]):
    rows = drawn_rows(dtype, tuple(shape), seed)
    index = torch.tensor([1, -1, 0, shape[0], shape[0] - 1])
    for sample in (1, 3):
        check(name, rows.cuda(), index.int(), sample)
        check(name + ", transposed", rows.cuda().transpose(1, -1), index, sample)
        gap = torch.cat([rows, rows], 1).cuda().view(shape[0], 2, *shape[1:])[:, 1]
        check(name + ", gap", gap, index, sample)
pools = [drawn_rows("float32", (4, 2, 40 + 20 * n, 16), seed + n) for n in range(3)]
on_device = [pool.cuda() for pool in pools]
pools.append(drawn_rows("bfloat16", (4, 7, 3), seed).transpose(1, 2))
on_device.append(pools[-1].cuda())
for long in (False, True):
    index = torch.tensor([3, -1, 0, 2, 1, 7, 3])
    index = index if long else index.int()
    held = index.cuda()
    digest_kernel._JOB_FILL = 1 if long else 1 << 20  # programs read many blocks of a row, or one
    for count in (7, 1):
        for sample in (1, 3):
            jobs = [digests.CopyJob(held, 0)]
            jobs += [digests.RowsJob(pool, held[:count], 256 * (1 + n)) for n, pool in enumerate(on_device)]
            done = digests.Jobs(jobs, sample, lambda numbers, device: numbers.to(device))
            assert len(done._alone) == 1
            memory = torch.zeros(256 * 5, dtype=torch.uint8).cuda()
            done.run(memory)
            done.bound(more := torch.zeros_like(memory), 0, torch._C._cuda_getCurrentRawStream(0))()
            assert torch.equal(more, memory)
            words = memory.cpu().view(torch.int64).view(5, 16, 2)
            equal = words[0].flatten().view(index.dtype)[:7].tolist() == index.tolist()
            for n, pool in enumerate(pools):
                wanted = unsigned(digests.indexed_digests(pool, index[:count], sample))
                equal = equal and unsigned(words[1 + n])[:count] == wanted
            print(json.dumps(["jobs", equal]))
"""
FORMS = [
    ("float32 words", "float32", (6, 2, 8, 8)),
    ("bfloat16", "bfloat16", (5, 40, 4)),
    ("fp8", "float8_e4m3fn", (3, 13, 5)),
    ("several blocks", "float32", (3, 50, 100)),
    ("many rows of halves", "float16", (9, 3, 7)),
]


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["b200", "h200"])
def test_the_kernel_equals_the_cpu_on_a_virtual_gpu(machine: str) -> None:
    need("triton", WITH_TRITON, TRITON_REQUIREMENTS)
    root = Path(__file__).resolve().parents[1]
    path = [path for path in (os.environ.get("PYTHONPATH"), str(root), triton_folder()) if path]
    command = [sys.executable, "-m", "gdnbench", "sim", "--machine", machine, "--", sys.executable, "-c"]
    ran = subprocess.run(
        [*command, PROGRAM, str(drawn("digest kernel")), json.dumps(FORMS)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert len(found) == len(FORMS) * 6 + 8
    assert [name for name, equal in found if not equal] == []
