# SPDX-License-Identifier: Apache-2.0
"""Right kernels pass all sections; each wrong one fails, and the section and law say what is wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gdnbench.errors import BadInputError, CannotRunError, Exit
from gdnbench.prove.repeat import repeat_order
from gdnbench.prove.result import Check, Proof, Section
from gdnbench.prove.run import Options, Prover, evenly
from gdnbench.report.outcome import Outcome
from tests.messages import wording

KERNELS = Path(__file__).with_name("kernels.py")
ALL = tuple(Section)


def prove(
    kernel: str,
    captures: Path | None = None,
    *,
    op: str = "gdn_prefill",
    sections: Sequence[Section] = ALL,
    isolate: bool | None = False,
    **options: Any,
) -> Proof:
    name = kernel if ":" in kernel or kernel == "torch" else f"{KERNELS}:{kernel}"
    given = Options(name, op, sections=tuple(sections), captures=captures, isolate=isolate, **options)
    return Prover(given).prove()


def wrong(proof: Proof) -> set[tuple[str, str]]:
    """Section and name of what failed."""
    return {(str(check.section), check.name) for check in proof.failing}


def test_a_right_prefill_kernel_passes_everything(made: Path, captures: Path) -> None:
    proof = prove("prefill", captures)
    assert proof.exit_code is Exit.PASS
    assert proof.failing == ()
    counts = {(str(row.section), row.name): row.passed for row in proof.rows}
    # The made record has causality at 3 places, two inside a chunk and one at a border, and 2 splits, inside
    # and at one. The captured one is a sequence of 40 tokens.
    assert counts == {
        ("captures", "served"): 1,
        ("made", "made records"): 2,
        ("laws", "causality"): 5,
        ("laws", "sequences"): 1,
        ("laws", "order"): 1,
        ("laws", "padding"): 2,
        ("laws", "scale"): 4,
        ("laws", "split"): 3,
        ("repeat", "same bits"): 2,
    }
    assert any(note.startswith("poison: ") for note in proof.notes)


def test_a_right_decode_kernel_passes_everything(made: Path, captures: Path) -> None:
    proof = prove("decode", captures, op="gdn_decode")
    assert proof.exit_code is Exit.PASS, proof.failing
    assert {"causality", "sequences", "order", "padding", "scale", "unnamed slots", "split"} == {
        row.name for row in proof.rows if row.section is Section.LAWS
    }


@pytest.mark.slow
def test_an_ignored_initial_state_fails_records_and_the_split(made: Path, captures: Path) -> None:
    proof = prove("ignores_the_initial_state", captures)
    assert proof.exit_code is Exit.MISMATCH
    assert {("captures", "served"), ("made", "made records"), ("laws", "split")} <= wrong(proof)
    assert not wrong(proof) & {("laws", "causality"), ("laws", "order"), ("repeat", "same bits")}


def test_a_leak_of_1_percent_of_later_tokens_breaks_causality(made: Path) -> None:
    proof = prove("leaks_later_tokens", sections=[Section.LAWS])
    assert ("laws", "causality") in wrong(proof)
    assert ("laws", "order") not in wrong(proof)
    reasons = [reason for check in proof.failing for reason in check.reasons if check.name == "causality"]
    assert any(reason.startswith("o of sequence 0") for reason in reasons)


def test_a_state_leak_between_sequences_breaks_their_independence(made: Path) -> None:
    proof = prove("leaks_between_sequences", sections=[Section.LAWS])
    assert ("laws", "sequences") in wrong(proof)
    (check,) = (check for check in proof.failing if check.name == "sequences")
    assert all(reason.startswith("final_state of sequence") for reason in check.reasons)


def test_a_kernel_that_counts_its_calls_is_not_repeatable(made: Path, captures: Path) -> None:
    proof = prove("counts_its_calls", captures, sections=[Section.CAPTURES, Section.MADE, Section.REPEAT])
    assert wrong(proof) == {("repeat", "same bits")}
    for check in proof.failing:
        (reason,) = check.reasons
        assert re.search(wording("prove.not-repeatable", tensor="o", count=1, first=[0, 0, 0]), reason)


def test_nan_and_what_is_not_written_fail_records(made: Path) -> None:
    for kernel in ("leaves_nan", "leaves_the_last_token_out"):
        proof = prove(kernel, sections=[Section.MADE])
        assert wrong(proof) == {("made", "made records")}
        assert len(proof.failing) == 2
    (check, *_) = proof.failing
    assert any("never written" in reason for reason in check.reasons)  # the poison is on


def test_a_slot_that_is_not_named_must_not_be_written(made: Path) -> None:
    proof = prove("writes_an_unnamed_slot", op="gdn_decode", sections=[Section.MADE, Section.LAWS])
    assert ("made", "made records") in wrong(proof)
    assert ("laws", "unnamed slots") in wrong(proof)
    assert any(
        re.search(wording("replay.slots-written"), reason)
        for check in proof.failing
        for reason in check.reasons
    )


def test_drafts_must_not_change_earlier_tokens(made: Path) -> None:
    proof = prove("lets_drafts_change_earlier_tokens", op="gdn_decode", sections=[Section.LAWS])
    assert ("laws", "causality") in wrong(proof)


def test_a_crash_fails_every_section_with_its_reason(made: Path, captures: Path) -> None:
    proof = prove("crashes", captures)
    assert proof.exit_code is Exit.MISMATCH
    assert {section for section, _ in wrong(proof)} == {"captures", "made", "laws", "repeat"}
    for check in proof.failing:
        assert check.outcome is Outcome.CRASH
        assert "an index out of range" in check.reasons[0]
    assert [len(group) for group in proof.failing_alike] == [len(proof.failing)]


@pytest.mark.slow
def test_a_kernel_that_ends_its_process_fails_every_section(made: Path, captures: Path) -> None:
    proof = prove("aborts", captures, isolate=None, timeout=60.0)
    assert {section for section, _ in wrong(proof)} == {"captures", "made", "laws", "repeat"}
    assert all("SIGABRT" in check.reasons[0] for check in proof.failing)


def test_a_refused_call_is_counted_and_no_failure(made: Path) -> None:
    proof = prove("takes_no_float16", sections=[Section.MADE, Section.REPEAT])
    assert proof.exit_code is Exit.PASS
    assert [row.unsupported for row in proof.rows] == [1, 1]
    assert [row.passed for row in proof.rows] == [1, 1]


def test_a_kernel_that_refuses_everything_cannot_run() -> None:
    refused = Check(Section.MADE, "made records", "0 a", Outcome.UNSUPPORTED)
    assert Proof("k", "gdn_prefill", "cpu", 0, (refused,)).exit_code is Exit.CANNOT_RUN
    missing = Check(Section.MADE, "made records", "0 a", Outcome.MISSING)
    assert Proof("k", "gdn_prefill", "cpu", 0, (missing,)).exit_code is Exit.CANNOT_RUN


def test_the_seed_changes_made_records(made: Path) -> None:
    ratios = [
        [check.ratio for check in prove("torch", sections=[Section.MADE], seed=seed).checks]
        for seed in (0, 0, 5)
    ]
    assert ratios[0] == ratios[1] != ratios[2]


def test_each_record_runs_twice_with_others_between() -> None:
    for count in range(2, 8):
        order = repeat_order(count)
        for number in range(count):
            places = [place for place, one in enumerate(order) if one == number]
            assert any(later - earlier > 1 for earlier, later in pairwise(places))
            # A counter modulo 2 shows: two of the runs are an odd number of calls apart.
            assert any((a - b) % 2 for a in places for b in places)


def test_missing_captures_cannot_run_and_say_how_to_get_them(
    made: Path,
) -> None:
    with pytest.raises(CannotRunError, match=wording("prove.captures-missing")):
        prove("prefill")
    assert prove("prefill", sections=[Section.MADE]).exit_code is Exit.PASS


def test_captures_without_the_operation_are_bad_input(made: Path, captures: Path) -> None:
    with pytest.raises(BadInputError, match=wording("prove.captures-none", op="swa_decode")):
        prove("torch", captures, op="swa_decode", sections=[Section.CAPTURES])


def test_the_simulator_leaves_large_records_out_and_says_so(made: Path, captures: Path) -> None:
    def prover(everything: bool) -> Prover:
        return Prover(Options("sm100", "gdn_prefill", "sim", captures=captures, everything=everything))

    some = prover(everything=False)
    assert [record.name for record in some._made()] == ["lengths"]
    assert some.left_out == ["1 made record"]
    assert len(prover(everything=True)._made()) == 2


def test_evenly() -> None:
    assert evenly(range(32), 3) == [0, 16, 31]
    assert evenly([4, 5], 3) == [4, 5]
    assert evenly([], 3) == []


@pytest.mark.slow
@pytest.mark.parametrize("op", ["gdn_prefill", "gdn_decode", "swa_decode"])
def test_torch_is_proven(op: str) -> None:
    proof = prove("torch", op=op, isolate=None)
    assert proof.exit_code is Exit.PASS, proof.failing
    assert {row.section for row in proof.rows} == set(Section)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "kernel"), [("gdn_prefill", "sm100"), ("gdn_decode", "cute"), ("swa_decode", "portable")]
)
def test_compiled_kernels_are_proven_on_the_simulator(op: str, kernel: str) -> None:
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    given = Options(kernel, op, "sim", sections=(Section.LAWS, Section.REPEAT))
    proof = Prover(given).prove()
    assert proof.exit_code is Exit.PASS, proof.failing
    assert all(row.unsupported == 0 for row in proof.rows)


@pytest.mark.parametrize("kernel", ["returns_a_number", "leaves_a_row_out"])
def test_a_wrong_shape_fails_every_section(made: Path, kernel: str) -> None:
    proof = prove(kernel, sections=[Section.MADE, Section.LAWS, Section.REPEAT])
    assert {section for section, _ in wrong(proof)} == {"made", "laws", "repeat"}
    assert not any(check.passed for check in proof.checks)
    assert all("shape [" in check.reasons[0] for check in proof.failing)


@pytest.mark.parametrize("kernel", ["returns_complex", "returns_sparse", "returns_meta"])
def test_a_tensor_that_cannot_be_read_is_a_crash(made: Path, kernel: str) -> None:
    proof = prove(kernel, sections=[Section.MADE])
    assert {check.outcome for check in proof.checks} == {Outcome.CRASH}
    assert all("cannot be read" in check.reasons[0] for check in proof.checks)


def test_a_view_with_the_negative_flag_is_read(made: Path) -> None:
    assert prove("returns_a_negated_view", sections=[Section.MADE], isolate=True).exit_code is Exit.PASS


def test_a_buffer_that_every_call_returns_hides_no_leak(made: Path) -> None:
    proof = prove("leaks_in_its_own_buffer", sections=[Section.LAWS])
    assert ("laws", "causality") in wrong(proof)


def test_captures_that_are_no_folder(tmp_path: Path) -> None:
    store = tmp_path / "a.zarr.zip"
    store.touch()
    with pytest.raises(BadInputError, match="is no folder"):
        prove("torch", store, sections=[Section.CAPTURES])
    with pytest.raises(BadInputError, match="does not exist"):
        prove("torch", tmp_path / "none", sections=[Section.CAPTURES])
