# SPDX-License-Identifier: Apache-2.0
"""The launch of gdn_prefill for Hopper that computes Ai beta and P of all chunks, in the simulator: against
the formulas in fp64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active
from gdnbench_kernels import programs
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill import kernel_sm90_squares
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.gdn_prefill.sm90_prepared_sources import squares_source
from gdnbench_kernels.gdn_prefill.sm90_squares_plan import (
    SquareTuning,
    heads_of_work,
    planned_squares,
)
from gdnbench_kernels.gdn_prefill.synth import synth
from gdnbench_kernels.gpu import SM90

UNTOUCHED = 7.0
INVERSE_ERROR = {1: 3e-3, 2: 4e-5}
"""Of X by the largest beta, in the Frobenius norm of a 16 x 16 block: the limits that inverse.py documents,
for fp16 operands and for operands in two parts."""
ROUNDING = 2.0**-8
"""Half an ULP of bf16, at most, of a number."""


def squares_of(call: Call, ctas: int, **settings: Any) -> Tensor:
    """What the launch leaves; nothing is found."""
    given = call.tensors
    heads, value_heads = given["k"].shape[1], given["v"].shape[1]
    slots = len(given["v"]) // CHUNK + len(given["cu_seqlens"]) - 1
    squares = torch.full((slots, value_heads, 2, CHUNK, CHUNK), UNTOUCHED, dtype=torch.bfloat16)
    inputs = (given[name] for name in ("q", "k", "g", "beta", "cu_seqlens"))
    with active(Settings(**settings)) as session, programs_simulated():
        program = programs.compiled(
            SM90, squares_source, heads, value_heads, call.scalars.get("beta_max", 1.0)
        )
        program(*inputs, squares, ctas)
    assert [finding.message for report in session.reports for finding in report.findings] == []
    return squares


def chunks_of(call: Call) -> dict[int, slice]:
    """The tokens of each slot that has some."""
    bounds = call.tensors["cu_seqlens"].tolist()
    return {
        (start - bounds[0]) // CHUNK + number + first // CHUNK: slice(
            start + first, min(start + first + CHUNK, stop)
        )
        for number, (start, stop) in enumerate(pairwise(bounds))
        for first in range(0, stop - start, CHUNK)
    }


def formulas(call: Call, tokens: slice, head: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of the tokens of a chunk Ai beta and P in fp64, and |q| |k|^T, which bounds what P sums."""
    given = call.tensors
    key_head = head * given["k"].shape[1] // given["v"].shape[1]
    q, k = (given[name][tokens, key_head].double() for name in ("q", "k"))
    beta = given["beta"][tokens, head].double()
    sums = given["g"][tokens, head].double().cumsum(0)
    decays = (sums[:, None] - sums).tril().exp().tril()
    a = (beta[:, None] * (k @ k.T) * decays).tril(-1)
    inverse = torch.linalg.inv(torch.eye(len(a), dtype=torch.float64) + a)
    return inverse * beta, ((q @ k.T) * decays).tril(), q.abs() @ k.abs().T


@pytest.mark.slow  # compiles a program
@pytest.mark.parametrize(
    "options",
    [
        {"seqlens": (65, 0, 130), "heads": (1, 1)},
        {"seqlens": (65, 0, 130), "heads": (1, 2)},
        {"seqlens": (65, 0, 130), "heads": (1, 2), "beta": (0.0, 2.0)},
        {"seqlens": (3, 0, *[1] * 35, 70), "heads": (2, 8)},
    ],
    ids=["a head each work", "two heads each work", "beta beyond 1", "more sequences than lanes"],
)
def test_squares_are_those_of_the_formulas(options: dict[str, Any]) -> None:
    """Up to the sequence's end; above the diagonal they are 0. Slots without a chunk stay as they are.

    Ai beta: the error of X that inverse.py documents, and one rounding to bf16. P: a sum over 128 in f32,
    2^-24 of the sum of magnitudes each; an exponential to 2^-16 (gate_scan.decay); a rounding to bf16.
    """
    call = synth(**options)
    squares = squares_of(call, ctas=3)
    chunks = chunks_of(call)
    limit = INVERSE_ERROR[2 if call.scalars.get("beta_max", 1.0) > 1 else 1]
    for slot, tokens in chunks.items():
        count = tokens.stop - tokens.start
        for head in range(squares.shape[1]):
            inverse, p, sizes = formulas(call, tokens, head)
            found = squares[slot, head, :, :count, :count].double()
            error = (found[0] - inverse).norm() / inverse.norm()
            assert error <= limit + ROUNDING
            allowed = (ROUNDING + 2.0**-15) * p.abs() + 128 * 2.0**-24 * sizes
            assert ((found[1] - p).abs() <= allowed).all()
            assert not found.triu(1).any()
    for slot in set(range(len(squares))) - set(chunks):
        assert (squares[slot] == UNTOUCHED).all()


@pytest.mark.slow
def test_squares_do_not_depend_on_ctas_or_schedules_and_nothing_races() -> None:
    """With so many chunks that every stage is used again."""
    call = synth(seqlens=(300, 0, 200), heads=(1, 2))
    wanted = squares_of(call, ctas=1, check=True)
    assert (squares_of(call, ctas=4, schedule="random:3") == wanted).all()


def test_a_work_has_two_value_heads_where_a_key_head_has_an_even_number() -> None:
    assert [heads_of_work(2, count) for count in (2, 4, 6, 8)] == [1, 2, 1, 2]


def test_the_header_has_the_plan() -> None:
    tables = planned_squares(SquareTuning(), split=False, together=2).tables()
    assert f"\n\n{tables}\n\n" in str(kernel_sm90_squares.__doc__), f"the tables are now\n{tables}"
