# SPDX-License-Identifier: Apache-2.0
"""`--on sim`: recorded calls through kernels that run on the simulated SM100."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.record import RecordDraft
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")


def mine(function: str) -> str:
    return f"{Path(__file__).with_name('simulated.py')}:{function}"


@pytest.fixture
def decode(store_of: Callable[[list[RecordDraft]], Store], made: Callable[..., list[RecordDraft]]) -> Store:
    return store_of(made("gdn_decode", 1, batch=2, slots=4, padding=0.0))


@pytest.mark.parametrize("function", ["calls_a_compiled_kernel", "calls_launch"])
def test_a_compiled_kernel_is_simulated(decode: Store, function: str) -> None:
    (result,) = replay(decode, kernel=mine(function), on="sim", isolate=False).records
    assert (result.outcome, result.reason) == (Outcome.PASS, ""), result.reason
    # 2 sequences of 4 heads of 32: two CTAs of 128 threads, four warps each.
    (note,) = [note for note in result.notes if note.startswith("simulated: ")]
    assert note.startswith("simulated: 1 launch, ")
    instructions = int(note.split()[3].replace(",", ""))
    assert 8 * 4 <= instructions <= 8 * 100


def test_in_a_process_of_its_own(decode: Store) -> None:
    (result,) = replay(decode, kernel=mine("calls_a_compiled_kernel"), on="sim").records
    assert result.outcome is Outcome.PASS
    assert any(note.startswith("simulated: 1 launch") for note in result.notes)


def test_against_a_kernel_on_the_cpu(decode: Store) -> None:
    report = replay(
        decode, kernel=mine("calls_launch"), against="torch", on="sim", bitwise=True, isolate=False
    )
    assert [record.outcome for record in report.records] == [Outcome.PASS]


def test_what_the_simulated_kernel_leaves_out_is_a_mismatch(decode: Store) -> None:
    (result,) = replay(decode, kernel=mine("copies_all_but_one"), on="sim", isolate=False).records
    assert result.outcome is Outcome.MISMATCH, result.reason
    (wrong,) = [tensor for tensor in result.tensors if tensor.reasons]
    assert wrong.tensor == "o"


@pytest.mark.parametrize(
    ("function", "outcome", "reason"),
    [
        ("reads_past_the_end", Outcome.CRASH, r"out-of-bounds access: .* source .*simulated\.py:"),
        ("launches_nothing", Outcome.MISSING, "ran nothing on the simulator"),
        (
            "passes_a_wrong_type",
            Outcome.CRASH,
            "source " + wording("sim.host.tensor-dtype", dtype="float32", wanted="bfloat16"),
        ),
    ],
)
def test_failures(decode: Store, function: str, outcome: Outcome, reason: str) -> None:
    import re

    (result,) = replay(decode, kernel=mine(function), on="sim", isolate=False).records
    assert result.outcome is outcome
    assert re.search(reason, result.reason), result.reason
    assert "\n" not in result.reason


@pytest.mark.parametrize("isolate", [False, True])
def test_a_kernel_that_goes_on_after_a_fault(decode: Store, isolate: bool) -> None:
    """Its numbers are judged, and it is no pass, although no number is wrong."""
    (result,) = replay(
        decode, kernel=mine("reads_past_the_end"), on="sim", isolate=isolate, keep_going=True
    ).records
    assert result.outcome is Outcome.MISMATCH, result.reason
    assert all(not tensor.reasons for tensor in result.tensors)
    assert re.search(r"out-of-bounds access in launch 0: .* source .* keep_going: ", result.reason)
    assert any("results after a fault are not those of a correct run" in note for note in result.notes)


def test_keep_going_is_of_the_simulator(decode: Store) -> None:
    with pytest.raises(BadInputError, match=wording("replay.keep-going-on", on="cpu")):
        replay(decode, kernel="torch", keep_going=True)


def test_a_call_of_no_tokens_needs_no_launch(
    store_of: Callable[[list[RecordDraft]], Store], made: Callable[..., list[RecordDraft]]
) -> None:
    store = store_of(made("gdn_prefill", 1, seqlens=(0, 0), head_dim=(128, 128)))
    (result,) = replay(store, kernel="sm100", on="sim").records
    assert (result.outcome, result.reason) == (Outcome.PASS, "")


def test_a_listed_kernel_that_is_not_compiled_for_sm100(decode: Store) -> None:
    with pytest.raises(
        CannotRunError,
        match=wording(
            "replay.not-sm100",
            kernel="torch",
            known=re.compile(".* flashinfer, .* portable, .* sm100, sm100_auto, sm100_fused.*"),
        ),
    ):
        replay(decode, kernel="torch", on="sim")


def test_a_listed_kernel_of_another_operation(decode: Store) -> None:
    (result,) = replay(decode, kernel="sm100", on="sim").records
    assert result.outcome is Outcome.UNSUPPORTED
    assert re.search(
        wording("replay.operation-kernel-unknown", operation="gdn_decode", kernel="sm100"), result.reason
    )


def test_calls_are_real_calls_again_afterwards(decode: Store) -> None:
    """Without the simulator the same function needs a GPU."""
    replay(decode, kernel=mine("calls_launch"), on="sim", isolate=False)
    if torch.cuda.is_available():
        pytest.skip("there is one")
    (result,) = replay(decode, kernel=mine("calls_a_compiled_kernel"), on="cpu", isolate=False).records
    assert result.outcome is not Outcome.PASS
