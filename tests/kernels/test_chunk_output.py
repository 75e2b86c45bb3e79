# SPDX-License-Identifier: Apache-2.0
"""chunk_output alone, in the simulator: its inputs are the fp64 oracle's stages, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench import sim
from gdnbench_kernels.chunks import gather_chunks, scatter_chunks
from gdnbench_kernels.gdn_prefill.chunked import form_p, read_out
from gdnbench_kernels.gdn_prefill.contract import OPERATION, PACKED
from gdnbench_kernels.gdn_prefill.sources import build_output
from gdnbench_kernels.gdn_prefill.synth import synth
from gdnbench_kernels.rounding import EXACT, Arithmetic, tensor_core_arithmetic
from gdnbench_kernels.run import run_kernel
from tests.subset import quick

LENGTHS = (1, 63, 64, 65, 0, 127, 129)
SCALE = 128**-0.5
POISON = torch.nan
BF16 = tensor_core_arithmetic(torch.bfloat16)


@cache
def compiled(heads: int, value_heads: int) -> Any:
    host, arguments = build_output(heads, value_heads)
    return sim.compile(host, *arguments, arch="sm_100a")


@dataclass(frozen=True)
class Given:
    """What the kernel is given, and the chunks it is to do: all of the call's unless told."""

    tensors: dict[str, Tensor]
    chunks: Any

    @classmethod
    def of(cls, **options: Any) -> Given:
        call = synth(initial_state=True, **options)
        stages: dict[str, Tensor] = {}
        run_kernel(OPERATION, "reference_staged", call, stages)
        rounded = {"V_new": torch.bfloat16, "h": torch.bfloat16, "g_cu": torch.float32}
        inputs = {name: stages[name].to(dtype) for name, dtype in rounded.items()}
        kept = {name: call.tensors[name] for name in ("q", "k", "cu_seqlens")}
        return cls(kept | inputs, PACKED.plan_of(call))

    @property
    def heads(self) -> tuple[int, int]:
        return self.tensors["q"].shape[1], self.tensors["g_cu"].shape[1]

    def run(
        self, ctas: int = 3, scale: float = SCALE, chunks: Sequence[int] | None = None, **options: Any
    ) -> Tensor:
        """o, with `POISON` where the kernel did not write; its inputs are as they were.

        With `chunks`, those alone are in the table, V_new and h.
        """
        listed = list(range(self.chunks.total) if chunks is None else chunks)
        where = torch.stack([self.chunks.sequence, self.chunks.index], 1)[listed].int()
        # Rows past the last chunk are not to be read: none of a sequence or chunk that there is.
        indices = torch.full((self.chunks.bound, 2), 2**30, dtype=torch.int32)
        indices[: len(where)] = where
        total = torch.tensor([len(where)], dtype=torch.int32)
        o = torch.full((self.chunks.tokens, self.heads[1], 128), POISON, dtype=torch.bfloat16)
        given = self.tensors | {
            "h": only(self.tensors["h"], listed),
            "V_new": only(self.tensors["V_new"].unflatten(0, (-1, 64)), listed).flatten(0, 1),
        }
        x = {name: tensor.clone() for name, tensor in given.items()}
        inputs = (*(x[name] for name in ("q", "k", "V_new", "h", "g_cu", "cu_seqlens")), indices, total)
        report = sim.launch(compiled(*self.heads), *inputs, o, scale, ctas, **options)
        assert not report.findings, report
        for name, tensor in x.items():
            assert same_bits(tensor, given[name]), f"{name} was written to"
        return o

    def expected(self, arithmetic: Arithmetic, scale: float = SCALE) -> Tensor:
        """o of these very inputs."""
        rows = self.chunks.part(0, self.chunks.total)
        q, k, g_cu = (
            arithmetic.load(gather_chunks(self.tensors[name], *rows)) for name in ("q", "k", "g_cu")
        )
        h = self.tensors["h"][: self.chunks.total]
        v_new = self.tensors["V_new"].unflatten(0, (-1, 64)).movedim(1, 2)[: self.chunks.total]
        p = form_p(q, k, g_cu, arithmetic)
        o = torch.empty((self.chunks.tokens, self.heads[1], 128), dtype=arithmetic.stored)
        scatter_chunks(o, read_out(q, g_cu, p, h, v_new, scale, arithmetic), *rows)
        return o


def only(chunks: Tensor, listed: Sequence[int]) -> Tensor:
    """The listed rows, then NaN."""
    rows = torch.full_like(chunks, torch.nan)
    rows[: len(listed)] = chunks[list(listed)]
    return rows


def same_bits(x: Tensor, y: Tensor) -> bool:
    integers = {2: torch.int16, 4: torch.int32}[x.element_size()]
    return torch.equal(x.view(integers), y.view(integers))


def errors(given: Given, o: Tensor, exact: Tensor) -> Tensor:
    """RMS of the error over that of the exact values, of every (sequence, head) with tokens."""
    sequences = given.tensors["cu_seqlens"].diff().tolist()
    pairs = zip(o.double().split(sequences), exact.double().split(sequences), strict=True)
    rms = [((x - y).square().mean((0, 2)) / y.square().mean((0, 2))).sqrt() for x, y in pairs if len(x)]
    return torch.stack(rms)


def assert_accurate(given: Given, o: Tensor, scale: float = SCALE) -> None:
    """At most twice the error of the same roundings in torch: the worst (sequence, head), and all."""
    exact = given.expected(EXACT, scale)
    ours, torchs = errors(given, o, exact), errors(given, given.expected(BF16, scale), exact)
    assert ours.isfinite().all()
    assert ours.max() <= 2 * torchs.max(), (ours, torchs)
    assert ours.square().mean() <= 4 * torchs.square().mean(), (ours, torchs)


@pytest.mark.parametrize(("heads", "value_heads"), quick([(1, 1), (1, 2), (1, 3), (2, 8)], 2))
def test_every_sequence_and_head_is_accurate(heads: int, value_heads: int) -> None:
    given = Given.of(seqlens=LENGTHS, heads=(heads, value_heads))
    assert_accurate(given, given.run())


@pytest.mark.slow
@pytest.mark.parametrize("gate_span", quick([((1e-3, 1e5),), (1e5,)], 0, ids=["to 1e5", "1e5"]))
def test_wide_gates(gate_span: float | tuple[float, float]) -> None:
    """Sums of g over a chunk down to -1e5: above the diagonal exponents would be as large."""
    given = Given.of(seqlens=LENGTHS, heads=(1, 2), gate_span=gate_span)
    assert given.tensors["g_cu"].min() < -1e3
    assert_accurate(given, given.run())


def test_correlated_keys_and_another_scale() -> None:
    given = Given.of(seqlens=(65, 200), heads=(1, 3), key_correlation=1.0, gate_span=1e-3)
    assert_accurate(given, given.run(scale=0.5), scale=0.5)


@pytest.fixture(scope="module")
def mixed() -> tuple[Given, Tensor]:
    given = Given.of(seqlens=(1, 63, 64, 65, 0, 129), heads=(1, 3))
    return given, given.run()


@pytest.mark.parametrize("engine", quick(["compiled", "interpreter"], 0))
@pytest.mark.parametrize("schedule", quick(["late", "early", "random:1", "random:2"], 2))
def test_bits_are_those_of_every_schedule(mixed: tuple[Given, Tensor], engine: str, schedule: str) -> None:
    given, o = mixed
    assert same_bits(given.run(engine=engine, schedule=schedule), o)


@pytest.mark.parametrize("ctas", quick([1, 2, 100], 1))
def test_bits_are_those_of_any_number_of_ctas(mixed: tuple[Given, Tensor], ctas: int) -> None:
    """100: more than there are items."""
    given, o = mixed
    assert same_bits(given.run(ctas=ctas), o)


def test_only_listed_chunks_are_written(mixed: tuple[Given, Tensor]) -> None:
    """A tail's rows end where the next sequence's begin, and nobody else puts them right."""
    given, o = mixed
    plan = given.chunks
    for listed in (range(0, plan.total, 2), range(1, plan.total, 2), [plan.total - 1], []):
        expected = torch.full_like(o, POISON)
        for chunk in listed:
            rows = slice(int(plan.start[chunk]), int(plan.start[chunk] + plan.length[chunk]))
            expected[rows] = o[rows]
        assert same_bits(given.run(chunks=listed), expected)


@pytest.mark.slow
def test_a_sequence_alone_has_the_bits_it_has_in_a_batch(mixed: tuple[Given, Tensor]) -> None:
    given, o = mixed
    bounds, plan = given.tensors["cu_seqlens"].tolist(), given.chunks
    for n, (start, stop) in enumerate(pairwise(bounds)):
        if start == stop:
            continue
        rows = slice(64 * int(plan.offsets[n]), 64 * int(plan.offsets[n + 1]))
        alone = {name: given.tensors[name][start:stop] for name in ("q", "k", "g_cu")}
        alone |= {
            "V_new": given.tensors["V_new"][rows],
            "h": given.tensors["h"][rows.start // 64 : rows.stop // 64],
            "cu_seqlens": torch.tensor([0, stop - start], dtype=torch.int32),
        }
        call = synth(seqlens=(stop - start,), heads=given.heads)
        assert same_bits(Given(alone, PACKED.plan_of(call)).run(), o[start:stop])


@pytest.mark.slow
@pytest.mark.parametrize("value", quick([torch.nan, torch.inf], 0))
def test_what_a_neighbour_holds_is_nobody_elses(mixed: tuple[Given, Tensor], value: float) -> None:
    """Each sequence is NaN or Inf in every input: the others keep their bits, tails before it too."""
    given, o = mixed
    bounds, plan = given.tensors["cu_seqlens"].tolist(), given.chunks
    for n in (0, 2, 3, 5):
        tokens, chunks = slice(*bounds[n : n + 2]), slice(*plan.offsets[n : n + 2].tolist())
        x = {name: tensor.clone() for name, tensor in given.tensors.items()}
        for name in ("q", "k", "g_cu"):
            x[name][tokens] = value if name != "g_cu" else torch.nan
        x["h"][chunks] = value
        x["V_new"][64 * chunks.start : 64 * chunks.stop] = value
        spoilt = Given(x, plan).run()
        others = torch.ones(len(o), dtype=torch.bool)
        others[tokens] = False
        assert same_bits(spoilt[others], o[others])
        assert not spoilt[tokens].isfinite().any()


@pytest.mark.slow
def test_a_gate_that_is_not_a_number_does_not_look_like_one() -> None:
    """NaN in g_cu of one token: its outputs, and those after it in its chunk, are NaN."""
    given = Given.of(seqlens=(70, 70), heads=(1, 1))
    given.tensors["g_cu"][5] = torch.nan
    o = given.run()
    assert o[5:64].isnan().all()
    assert o[70:].isfinite().all()
