# SPDX-License-Identifier: Apache-2.0
"""The serving loop proves `gdnbench lineage`: no right schedule is accused, and every planted bug is found.

`scripts/prove_lineage.py` runs the same on more schedules, also with the Qwen3-Next model and through stores.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gdnbench.capture import CaptureOptions
from tests.lineage.serving.bugs import (
    BUGS,
    Bug,
    DuplicateRow,
    KeyOfOneBlock,
    OldSnapshot,
    PermutedCounts,
    PollutedBlock,
    RepeatedToken,
    SkippedToken,
    StalePadding,
    StaleRow,
)
from tests.lineage.serving.check import differences, false_accusations, findings_of, found_in, serve
from tests.lineage.serving.paged import PagedLoop, PageFreedEarly, WindowNotShared
from tests.lineage.serving.stores import DIGESTS, RECORDS, serve_recorded, serve_triggered
from tests.lineage.serving.toy_model import ToyModel
from tests.lineage.serving.window_check import serve_pages, window_differences, windows_found
from tests.subset import quick

MODEL = ToyModel()


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", quick(range(40), *range(6)))
def test_a_right_schedule_is_not_accused(seed: int) -> None:
    run = serve(MODEL, seed)
    assert run.wrong_outputs == []
    assert found_in(run.table) == [[], []]
    assert false_accusations(run) == []


@pytest.mark.every(2)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
@pytest.mark.parametrize("times", quick((1, 20), 0))
def test_a_planted_bug_is_found(bug: type[Bug], times: int) -> None:
    happened, seed = 0, 3 if bug is DuplicateRow else 0  # it does not happen in the first three schedules
    while happened < times:
        run = serve(MODEL, seed, bug)
        happened += any(run.certain)
        for want, found in zip(run.events, found_in(run.table), strict=True):
            assert differences(want, found) == []
        assert false_accusations(run) == []
        seed += 1
        assert seed < 40 * times, "the bug hardly happens"


def test_a_lost_first_write_leaves_a_slot_that_no_call_wrote() -> None:
    """The second request's first state goes to the first one's slot with this seed; its own stays empty."""
    run = serve(MODEL, 94, DuplicateRow)
    assert "never-written" in [event.kind for event in run.certain]
    for want, found in zip(run.events, found_in(run.table), strict=True):
        assert differences(want, found) == []


def test_a_first_call_with_the_count_of_another_request() -> None:
    """With this seed a prompt of one token is decoded at once, by the accepted count of its neighbour."""
    run = serve(MODEL, 1254, PermutedCounts)
    first = [event for event in run.certain if event.sequence == 1]
    assert {event.kind for event in first} == {"accepted-count"}
    for want, found in zip(run.events, found_in(run.table), strict=True):
        assert differences(want, found) == []


def test_an_older_state_that_others_wrote_too_is_the_readers() -> None:
    """With this seed a request gets its state of a prefix back, which another one with that prefix wrote
    later."""
    run = serve(MODEL, 4324, OldSnapshot)
    assert {event.kind for event in run.certain} == {"older-version"}
    for want, found in zip(run.events, found_in(run.table), strict=True):
        assert differences(want, found) == []


def test_a_start_from_what_padding_left_in_a_former_slot() -> None:
    """With this seed a request that starts anew gets a slot it once had: the padding's last write to the slot
    did the damage, not its first one since the request had left."""
    run = serve(MODEL, 4336, StalePadding)
    assert run.certain
    for want, found in zip(run.events, found_in(run.table), strict=True):
        assert differences(want, found) == []


SEEDS: dict[str, tuple[type[Bug], int]] = {
    "two requests write one wrong state; a copy comes to a slot that a third has written": (
        DuplicateRow,
        5701,
    ),
    "a request loses its state, and starts anew from an older one of its own": (DuplicateRow, 20030),
    "a request whose state was lost gets an empty slot, and counts anew": (DuplicateRow, 42013),
    "the wrong state of a cache is copied to a slot that had the right one before": (PollutedBlock, 5730),
    "the same, and requests that went on wrote the slot in between": (KeyOfOneBlock, 9153),
    "a call computes tokens again, from the wrong state of the call before": (KeyOfOneBlock, 9174),
    "padding writes the slot of a request that another of its name has left": (StalePadding, 9106),
    "the same of a request that starts anew from a cached state": (StalePadding, 51017),
    "a request starts from a cached state, and its neighbour's count names an empty slot": (
        PermutedCounts,
        81035,
    ),
    "a request is preempted so often that more calls write a state than are looked at": (RepeatedToken, 9115),
}


@pytest.mark.parametrize(("bug", "seed"), SEEDS.values(), ids=SEEDS)
def test_what_is_rare(bug: type[Bug], seed: int) -> None:
    run = serve(MODEL, seed, bug)
    assert run.certain
    for want, found in zip(run.events, found_in(run.table), strict=True):
        assert differences(want, found) == []


@pytest.mark.parametrize("seed", quick(range(60), 0, 39))
def test_right_windows_are_not_accused(seed: int) -> None:
    run = serve_pages(seed)
    assert not run.wrong
    assert not windows_found(run.table)


@pytest.mark.parametrize("loop", [WindowNotShared, PageFreedEarly], ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("times", quick((1, 20), 0))
def test_a_stale_page_is_found(loop: type[PagedLoop], times: int) -> None:
    happened, seed = 0, 15
    while happened < times:
        run = serve_pages(seed, loop)
        happened += bool(run.first)
        assert window_differences(run, windows_found(run.table)) == []
        seed += 1
        assert seed < 40 * times, "the bug hardly happens"


def test_a_row_that_another_with_the_same_tokens_wrote_has_changed() -> None:
    """With this seed a page is freed too early, and its new owner has the reader's prefix; rows are rounded
    anew where they are computed anew."""
    run = serve_pages(4334, PageFreedEarly)
    assert run.first
    assert window_differences(run, windows_found(run.table)) == []


@pytest.mark.parametrize(("seed", "loop"), [(5747, WindowNotShared), (5678, PageFreedEarly)])
def test_a_stale_page_is_no_ring_in_the_order_of_its_slots(seed: int, loop: type[PagedLoop]) -> None:
    """With these seeds most rows that a request read before have moved, to the end of its window."""
    run = serve_pages(seed, loop)
    assert run.first
    assert window_differences(run, windows_found(run.table)) == []


def test_wrong_rows_that_were_swapped_out_come_back_wrong() -> None:
    """With this seed a request is preempted while its window has another's rows."""
    run = serve_pages(71223, WindowNotShared)
    found = windows_found(run.table)
    assert found
    assert window_differences(run, found) == []


@pytest.mark.slow
def test_the_real_model_gives_the_tokens_of_its_plain_generate() -> None:
    pytest.importorskip("transformers")
    from tests.lineage.serving.qwen_model import QwenModel

    model = QwenModel()
    for seed in range(12):
        run = serve(model, seed)
        assert run.wrong_outputs == []
        assert not any(findings_of(run.table).values())


def test_the_trigger_keeps_the_first_step_after_a_prompt(tmp_path: Path) -> None:
    """With this seed the first call after the prompts, of which there is one a layer, reads a wrong state."""
    run, kept = serve_triggered(MODEL, 0, SkippedToken, tmp_path / "on-lineage.zarr")
    assert [event.found for event in run.certain] == kept == [MODEL.layers, MODEL.layers + 1]


@pytest.mark.slow
@pytest.mark.parametrize("options", [RECORDS, DIGESTS], ids=["records", "digests"])
@pytest.mark.parametrize("bug", [None, StaleRow, PermutedCounts, StalePadding])
def test_a_store_shows_the_same(tmp_path: Path, options: CaptureOptions, bug: type[Bug] | None) -> None:
    run, found = serve_recorded(MODEL, 3, bug, tmp_path / "run.zarr", options)
    assert bool(run.certain) is (bug is not None)
    for want, shown in zip(run.events, found, strict=True):
        assert differences(want, shown) == []
