# SPDX-License-Identifier: Apache-2.0
"""Whatever fails on our side, the program prints, computes and exits as it would without us."""

from __future__ import annotations

import re
import resource
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing, record, session
from gdnbench.capture.outcome import Outcome
from gdnbench.store.journal import JournalWriter
from gdnbench.store.reader import Store
from gdnbench.store.sealer import Progress
from tests.messages import wording

Toy = Any
PROGRAM = """
    import toyframe, torch
    model = toyframe.Model()
    with torch.no_grad():
        for step in range(4):
            print(float(model(step)).hex())
    raise SystemExit(5)
"""

BROKEN = {
    "the adapter raises before the call": ('names = ("q"', 'raise ValueError("no such thing"); names = ("q"'),
    "the adapter raises after the call": ('return {"o"', 'raise ValueError("no such thing"); return {"o"'),
    "it names a tensor that the contract lacks": ('return {"o"', 'return {"no such thing"'),
    "it names an operation that there is not": ('op="gdn_decode"', 'op="no such thing"'),
    "it returns no tensor": ('Seen(arguments["pool"])', 'Seen("no such thing")'),
    "it does not import": ("from dataclasses", "import no_such_thing; from dataclasses"),
}


@pytest.mark.slow  # a program of its own; test_hostile_programs.py has adapters that do not load
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_adapter_changes_nothing(
    toy_with: Callable[[str, str], Toy], tmp_path: Path, what: str
) -> None:
    toy = toy_with(*BROKEN[what])
    script = toy.script(PROGRAM)
    plain = toy.run(script)
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert (ran.status, ran.out) == (plain.status, plain.out)
    assert plain.status == 5
    assert "problem: " in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.slow
def test_a_full_disk_changes_nothing(toy: Toy, tmp_path: Path) -> None:
    # A file-size limit acts like a full disk on the journal: writes fail in the middle of the run.
    script = toy.script(
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))\n"
        + textwrap.dedent(PROGRAM)
    )
    plain = toy.run(script)
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert (ran.status, ran.out) == (plain.status, plain.out)
    assert re.search(wording("file.unwritable"), ran.err)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_disk_that_is_full_for_the_sealer_leaves_no_process_alive(tmp_path: Path) -> None:
    """Its last figures are of a time when the processes ran: whether they still do, their locks say."""
    store = tmp_path / "run.zarr"
    writers = [JournalWriter(store, process={}, provenance={}) for _ in range(2)]
    names = tuple(writer.segment for writer in writers)
    notes = [{"event": "started"}, *({"event": "recording", "segment": name} for name in names)]
    writers[0].close({})
    said = []
    for _ in range(2):
        found = Outcome.from_notes(store, 0, Progress(live=names), (), notes, "StoreError: No space left")
        said.append(found.summary(store))
        writers[1].close({})
    assert any(re.search(wording("capture.process-lives"), line) for line in said[0])
    assert not any(re.search("process.* of the command", line) for line in said[1])
    not_sealed = wording("capture.not-sealed", error="StoreError: No space left")
    assert all(re.search(not_sealed, lines[-1]) for lines in said)


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_judged_after_the_command_does_not_outlive_it(count: int, tmp_path: Path) -> None:
    """The store of `--on-mismatch` is deleted: it is not named, and nothing in it is called kept."""
    store = tmp_path / "run.zarr"
    writers = [JournalWriter(store, process={}, provenance={}) for _ in range(count)]
    names = tuple(writer.segment for writer in writers)
    notes = [{"event": "started"}, *({"event": "recording", "segment": name} for name in names)]
    said = Outcome.from_notes(
        store, 0, Progress(live=names), (), notes, "StoreError: No space left", judged=True
    ).summary(store)
    assert re.search(wording("mismatch.recorded", calls="0 calls"), said[0])
    processes = "1 process" if count == 1 else "2 processes"
    assert any(re.search(wording("capture.not-judged-after-end", processes=processes), one) for one in said)
    assert re.search(wording("capture.not-sealed-lost", error="StoreError: No space left"), said[-1])
    assert str(store) not in "".join(said)
    for writer in writers:
        writer.close({})


@pytest.mark.slow  # a program of its own
@pytest.mark.parametrize("when_over", ["stop", "drop-oldest"])
def test_a_limit_that_no_call_fits_is_why_nothing_was_captured(
    toy: Toy, tmp_path: Path, when_over: str
) -> None:
    script = toy.script(PROGRAM)
    ran = toy.capture(tmp_path / "run.zarr", script, {"max_bytes": 1, "when_over": when_over})
    assert ran.status == 5
    if when_over == "stop":
        # Bytes of a call: 2 of 5 slots of a state of 1024 before and after, and its other tensors.
        found = re.search(wording("capture.first-too-large"), ran.err)
        assert found
        assert int(re.sub(r"\D", "", found[0])) > 4 * 1024
        assert "later calls" not in ran.err
    else:
        said = wording("capture.not-stored", parts="8 parts", reason=re.compile(".* are kept"))
        assert re.search(said, ran.err)


@pytest.mark.slow  # processes that import torch
def test_a_store_that_cannot_be_made_changes_nothing(toy: Toy, tmp_path: Path) -> None:
    script = toy.script(PROGRAM)
    (tmp_path / "file").write_text("not a folder")
    assert toy.run(script, GDNBENCH_CAPTURE=str(tmp_path / "file" / "run.zarr")) == toy.run(script)


def call_of(batch: int = 1) -> dict[str, Tensor]:
    return {
        "q": torch.ones(batch, 1, 2, 8),
        "k": torch.ones(batch, 1, 2, 8),
        "v": torch.ones(batch, 1, 4, 8),
        "g": torch.zeros(batch, 1, 4),
        "beta": torch.ones(batch, 1, 4),
        "state": torch.zeros(batch, 4, 8, 8),
        "state_indices": torch.arange(batch, dtype=torch.int32).unsqueeze(1),
    }


def test_an_exception_of_the_function_is_its_own_and_leaves_its_inputs(tmp_path: Path) -> None:
    failure = RuntimeError("of the program")

    @record("gdn_decode")
    def failing(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
    ) -> Tensor:
        state.fill_(7.0)
        raise failure

    with capturing(tmp_path / "run.zarr") as counts, pytest.raises(RuntimeError) as caught:
        failing(**call_of())
    assert caught.value is failure
    assert (counts.records, counts.unfinished, counts.failures) == (0, 1, 0)
    (stored,) = Store.open(tmp_path / "run.zarr").records
    assert stored.info.status == "unfinished"
    assert stored.info.dispatch["raised"] == "RuntimeError"
    assert not stored.after
    # As it was before the call wrote to it.
    assert torch.equal(stored.before["state"].read(), torch.zeros(1, 4, 8, 8))


def test_results_are_the_very_objects_of_the_function(tmp_path: Path) -> None:
    result = torch.ones(1, 1, 4, 8, requires_grad=True)

    @record("gdn_decode")
    def returning(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
    ) -> Tensor:
        return result

    with capturing(tmp_path / "run.zarr"):
        assert returning(**call_of()) is result
    (stored,) = Store.open(tmp_path / "run.zarr").records
    assert torch.equal(stored.after["o"].read(), result.detach())


def test_max_bytes_ends_the_capture_and_not_the_program(tmp_path: Path) -> None:
    @record("gdn_decode")
    def returning(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
    ) -> Tensor:
        return v * 2

    with capturing(tmp_path / "run.zarr", CaptureOptions(max_bytes=10_000)) as counts:
        for _ in range(5):
            assert float(returning(**call_of()).sum()) == 64.0
    # Bytes of a call: state 1024 before and after, q and k 64, v and o 128, g and beta 16 each, slot 4.
    assert (counts.records, counts.bytes) == (4, 4 * 2468)
    assert counts.reached_max_bytes


def test_functions_are_marked_as_constant_as_torch_marks_them() -> None:
    def marked() -> None: ...

    torch.compiler.assume_constant_result(marked)  # type: ignore[no-untyped-call]
    assert vars(marked)
    assert vars(marked).items() <= vars(session.count_compiled).items()
    assert vars(marked).items() <= vars(session.count_compiled_uncaptured).items()


def test_compiled_calls_are_counted_and_compiled_as_before(tmp_path: Path) -> None:
    @record("gdn_decode")
    def doubling(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
    ) -> Tensor:
        return v * 2

    compiled = torch.compile(doubling, backend="eager", fullgraph=True)
    with capturing(tmp_path / "run.zarr") as counts:
        assert float(compiled(**call_of()).sum()) == 64.0
        assert float(doubling(**call_of()).sum()) == 64.0
    assert (counts.records, counts.skipped_compiling, counts.failures) == (1, 1, 0)
