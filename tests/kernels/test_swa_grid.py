# SPDX-License-Identifier: Apache-2.0
"""The grid that a kernel of swa_decode is proven on: what is in it, and what the proof finds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.errors import Exit
from gdnbench.sim import simulate
from gdnbench_kernels.cases import Case
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode.cases import cases
from gdnbench_kernels.swa_decode.contract import OPERATION, flat_of
from gdnbench_kernels.swa_decode.layouts import unpack
from gdnbench_kernels.swa_decode.torch_paged import torch_paged
from gdnbench_kernels.swa_decode.window import attended
from tests.kernels.proving import GRIDS, Prover
from tests.seeds import drawn
from tests.subset import quick

Proof = Callable[..., tuple[Exit, str]]

FAULTY = Path(__file__).with_name("faulty_swa.py")


@pytest.fixture
def proof(prove: Callable[..., tuple[Exit, str]]) -> Proof:
    return partial(prove, "swa_decode")


@pytest.fixture(scope="module")
def made() -> dict[str, Call]:
    found = {case.name: OPERATION.synth(**case.options) for case in cases()}
    assert len(found) == len(list(cases())), "two cases of one name"
    return found


def holes(call: Call) -> Tensor:
    """-1 before another entry that counts."""
    indices = flat_of(call)
    counts = attended(indices, call.tensors["swa_lens"])
    after = counts.flip(1).cumsum(1).flip(1) > 0
    return (indices == -1) & after


@pytest.mark.parametrize("layout", ["per_token_scale", "fp8_ds_mla"])
def test_the_grid_has_what_kernels_go_wrong_on(made: dict[str, Call], layout: str) -> None:
    calls = [call for call in made.values() if call.conventions["cache_layout"] == layout]
    for call in calls:
        OPERATION.validate(call)
    assert {0, 1, 17, 127, 128} <= {int(n) for call in calls for n in call.tensors["swa_lens"]}
    assert {0, 1, 3, 64} <= {len(call.tensors["q"]) for call in calls}
    assert {8, 16, 32, 64, 128} <= {call.tensors["q"].shape[1] for call in calls}
    assert sum(call.tensors["q"].shape[0] == call.tensors["q"].shape[1] for call in calls) >= 2
    assert {call.conventions["index_shape"] for call in calls} == {"TW", "T1W", "1TW"}
    assert {call.tensors["cache"].shape[1] for call in calls} == {16, 32, 64, 128, 256}
    assert any(bool(holes(call).any()) for call in calls)
    sinks = [call.tensors.get("attn_sink") for call in calls]
    assert any(sink is None for sink in sinks)
    present = [float(sink[0]) for sink in sinks if sink is not None]
    assert {-torch.inf, torch.inf} <= set(present)
    assert any(abs(sink) < 10 for sink in present)
    assert any(sink > 1e5 for sink in present)
    # Pages in random order: some row's pages neither rise nor fall.
    pages = [flat_of(call)[0] // call.tensors["cache"].shape[1] for call in calls if len(call.tensors["q"])]
    assert any(len(row) > 2 and bool((row.diff() < 0).any() and (row.diff() > 0).any()) for row in pages)
    assert any(len(set(page[:64].tolist())) == 1 for page in pages)


def scores(call: Call) -> Tensor:
    """fp64 scores [H, n] of the row that attends to most slots."""
    cache, inv_scale = call.tensors["cache"], call.tensors.get("inv_scale")
    rows = unpack(cache, inv_scale, call.conventions["cache_layout"], torch.float64).flatten(0, 1)
    counts = attended(flat_of(call), call.tensors["swa_lens"])
    row = int(counts.sum(1).argmax())
    attended_rows = rows[flat_of(call)[row][counts[row]].long()]
    return call.tensors["q"][row].double() @ attended_rows.T * 512**-0.5


@pytest.mark.parametrize("layout", ["per token", "ds_mla"])
def test_scores_spread_as_far_as_they_should(made: dict[str, Call], layout: str) -> None:
    for spread in (1e2, 1e4):
        found = scores(made[f"{layout}, spread {spread:g}"])
        assert 0.5 * spread < float((found.amax(1) - found.amin(1)).mean()) < 2 * spread


def test_a_cases_nan_is_where_it_should_be(made: dict[str, Call]) -> None:
    for name, spoilt in (("NaN in a row", [1]), ("NaN in a scale", [0, 2])):
        for layout in ("per token", "ds_mla"):
            call = made[f"{layout}, {name}"]
            o = torch_paged(**call.tensors, **call.scalars, **call.conventions)["o"]
            assert set(spoilt) <= set(o.isnan().any(-1).any(-1).nonzero().flatten().tolist())


def test_the_quick_cases_pass_with_torchs_kernel_and_other_numbers(proof: Proof) -> None:
    seed = drawn("swa grid", 20)
    code, out = proof("--kernel", "torch", "--on", "cpu", "--quick", "--seed", str(seed))
    assert code is Exit.PASS, out
    quick = [case for case in cases() if case.quick and not case.refused]
    assert out.splitlines()[-1] == f"{len(quick)} cases, 0 failed"


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("kernel", "case", "reason"),
    [
        ("counts_the_sink_in_lse", "ds_mla, sink on", "lse: "),
        ("ignores_the_sink", "per token, sink on", "o: RMS error"),
        ("follows_stale_entries", "per token, one request of 17", "o: "),
        ("leaves_empty_rows", "ds_mla, one request of 0", "o: "),
        ("rounds_lse", "per token, 3 requests", "lse: "),
        ("multiplies_masked_rows_by_zero", "ds_mla, pages far apart, holes", "o: "),
    ],
)
def test_a_wrong_kernel_fails_for_what_it_does(proof: Proof, kernel: str, case: str, reason: str) -> None:
    right = proof("--kernel", f"{FAULTY}:correct", "--on", "cpu", case)
    assert right[0] is Exit.PASS, right[1]
    code, out = proof("--kernel", f"{FAULTY}:{kernel}", "--on", "cpu", case)
    assert code is Exit.MISMATCH
    assert f" {reason}" in out.splitlines()[1], out


class Bits:
    """Stands for replays whose output depends on the schedule, or not."""

    def __init__(self, flips: bool) -> None:
        self.flips, self.seen = flips, []

    def __call__(self, prover: Any, store: Any, number: int, schedule: str, run: Path) -> Any:
        self.seen.append(schedule)
        record, outputs = self.replayed(prover, store, number, schedule, run)
        if self.flips and schedule == "early":
            outputs["o"].view(torch.int16)[0, 0, 0] ^= 1
        return record, outputs

    def replayed(self, prover: Any, store: Any, number: int, schedule: str, run: Path) -> Any:
        return Prover(prover.grid, "torch", "cpu")._original(store, number, "late", run)


@pytest.mark.parametrize("flips", [False, True])
def test_every_schedule_is_run_and_its_bits_compared(monkeypatch: pytest.MonkeyPatch, flips: bool) -> None:
    """With torch's kernel standing in for a simulated one, which is another test's and takes longer."""
    fake = Bits(flips)
    monkeypatch.setattr(Prover, "_original", Prover._replayed, raising=False)
    monkeypatch.setattr(Prover, "_replayed", lambda *arguments: fake(*arguments))
    case = next(case for case in cases() if case.name == "ds_mla, 3 requests")
    grid = GRIDS["swa_decode"]
    verdict, record = Prover(grid, "sm100", "sim", grid.schedules).case(case)
    assert fake.seen == (["late", "early"] if flips else ["late", "early", "random:0"])
    assert verdict == ("FAIL" if flips else "pass"), record.reason
    if flips:
        assert record.reason == "o under schedule early has not the bits of late"


QUICK = [case for case in cases() if case.quick]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["sm100", "portable"])
@pytest.mark.parametrize("case", quick(QUICK, *range(0, len(QUICK), 24), ids=[case.name for case in QUICK]))
def test_the_compiled_kernels_pass(monkeypatch: pytest.MonkeyPatch, kernel: str, case: Case) -> None:
    """Simulated, the same bits whether effects land late or at random."""
    ran: list[str] = []

    def run(module: Any, requests: Any, regions: Any, session: Any, settings: Any) -> Any:
        ran.append(settings.schedule)
        return simulated(module, requests, regions, session, settings)

    simulated = simulate.run_requests
    monkeypatch.setattr(simulate, "run_requests", run)
    schedules = ("late", f"random:{drawn('swa grid schedule', 31)}")
    verdict, record = Prover(GRIDS["swa_decode"], kernel, "sim", schedules).case(case)
    assert verdict == ("refused" if case.refused else "pass"), record.reason
    launched = not case.refused and bool(case.options["lens"])
    assert ran == (list(schedules) if launched else [])
