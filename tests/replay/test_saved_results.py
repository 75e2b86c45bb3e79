# SPDX-License-Identifier: Apache-2.0
"""What a run store says of itself, read back: results, grids, and where both sides come from."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gdnbench.errors import BadInputError, Exit
from gdnbench.ops import operation
from gdnbench.record import RecordDraft
from gdnbench.replay.replay import replay
from gdnbench.replay.save import RunWriter
from gdnbench.report.export import to_json
from gdnbench.report.runs import read_run
from gdnbench.store.reader import Store
from tests.messages import wording

Faulty = Callable[[str], str]
StoreOf = Callable[[list[RecordDraft]], Store]
Made = Callable[..., list[RecordDraft]]


def unpacked(text: str, dtype: str = "<f4") -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


def test_a_run_has_the_results_that_were_reported(store: Store, faulty: Faulty, tmp_path: Path) -> None:
    report = replay(store, kernel=faulty("gets_a_tail_wrong"), isolate=False, save=tmp_path / "run.zarr")
    run = read_run(tmp_path / "run.zarr")
    assert run.header == report.header
    assert run.exit_code == report.exit_code == Exit.MISMATCH
    assert (run.expected, run.interrupted) == (len(store.records), False)
    printed = json.loads(to_json(report))["records"]
    for kept, told in zip(run.records, printed, strict=True):
        plain = {name: value for name, value in kept.items() if name != "segment"}
        tensors = [{k: v for k, v in tensor.items() if k != "grid"} for tensor in plain["tensors"]]
        assert {**plain, "tensors": tensors} == told


def test_a_grid_is_the_error_of_the_saved_output_chunk_by_chunk(
    store: Store, faulty: Faulty, tmp_path: Path
) -> None:
    """Held against the two runs' own outputs, the fp64 oracle's and the faulty kernel's, read back."""
    replay(store, kernel=faulty("gets_a_tail_wrong"), isolate=False, save=tmp_path / "run.zarr")
    replay(store, kernel="reference", save=tmp_path / "exact.zarr")
    run = read_run(tmp_path / "run.zarr")
    with Store.open(tmp_path / "run.zarr") as wrong, Store.open(tmp_path / "exact.zarr") as exact:
        x, y = (side.records[0].after["o"].read().double().numpy() for side in (wrong, exact))
    (tensor,) = (t for t in run.records[0]["tensors"] if t["tensor"] == "o")
    grid = tensor["grid"]
    heads, regions = grid["heads"], grid["regions"]
    assert [row[:2] for row in regions] == [[0, 0], [1, 0], [3, 0], [3, 1]]  # 1, 63, 0 and 70 tokens
    rms, peak = unpacked(grid["rms"]).reshape(-1, heads), unpacked(grid["max_abs"]).reshape(-1, heads)
    at = unpacked(grid["worst"], "<i4").reshape(len(regions), heads, 3)
    for number, (_, _, first, rows) in enumerate(regions):
        for head in range(heads):
            off = np.abs(x[first : first + rows, head] - y[first : first + rows, head])
            # The oracle of the run is fp64, the one read back is rounded to the output's dtype, bf16, whose
            # unit roundoff is 2**-8 of the value: an upper bound on what the two sides differ by.
            slack = 2.0**-8 * np.abs(y[first : first + rows, head]).max()
            assert peak[number, head] == pytest.approx(off.max(), abs=slack)
            assert rms[number, head] == pytest.approx(np.sqrt((off**2).mean()), abs=slack)
            row, where, column = at[number, head]
            assert where == head
            assert off[row - first, column] >= off.max() - 2 * slack
    wrong_chunk = rms[3] > 10 * rms[:3].max()
    assert wrong_chunk.all()  # the tail that it gets wrong is in the second chunk of sequence 3


def test_both_sides_say_where_they_come_from(store: Store, tmp_path: Path) -> None:
    replay(store, kernel="torch", save=tmp_path / "run.zarr")
    run = read_run(tmp_path / "run.zarr")
    assert run.provenance["packages"]["torch"]
    assert run.process["argv"]
    assert "replays" not in run.process
    names = {segment.name for segment in store.segments}
    assert set(run.captured) == names
    assert {record["segment"] for record in run.records} == names


def test_a_run_has_the_commit_of_the_kernels_own_repository(store: Store, tmp_path: Path) -> None:
    kernel = tmp_path / "repository" / "mine.py"
    kernel.parent.mkdir()
    kernel.write_text("def f(): pass\n")
    git = ["git", "-C", str(kernel.parent), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a kernel"]):
        subprocess.run([*git, *words], check=True)
    sha = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    header = {"command": "replay", "store": "s", "against": "reference", "on": "cpu", "rule": "r"}
    for name, known in ((f"{kernel}:f", {"git": {"sha": sha, "dirty": False}}), ("torch", None)):
        with RunWriter(tmp_path / f"{name[-1]}.zarr", {**header, "kernel": name}, store, []):
            pass
        assert read_run(tmp_path / f"{name[-1]}.zarr").provenance.get("kernel") == known


def test_a_run_without_outputs_is_its_results(store: Store, tmp_path: Path) -> None:
    report = replay(store, kernel="torch", save=tmp_path / "full.zarr")
    with RunWriter(tmp_path / "run.zarr", report.header, store, [0, 1, 2], outputs=False) as writer:
        record = store.records[0]
        writer.add(record, operation(record.info.op), report.records[0], None)
    run = read_run(tmp_path / "run.zarr")
    assert run.interrupted
    assert (len(run.records), run.expected) == (1, 3)
    with Store.open(tmp_path / "run.zarr") as saved:
        assert not saved.records[0].after
        assert not saved.records[0].before


def test_a_replay_that_keeps_no_outputs(store: Store, tmp_path: Path) -> None:
    replay(store, kernel="torch", save=tmp_path / "run.zarr", save_outputs=False)
    assert read_run(tmp_path / "run.zarr").records[0]["tensors"][0]["grid"] is not None
    with Store.open(tmp_path / "run.zarr") as saved:
        assert not [record for record in saved.records if record.after or record.before]


def test_json_of_a_replay_is_a_run_too(store: Store, tmp_path: Path) -> None:
    report = replay(store, kernel="torch")
    (tmp_path / "run.json").write_text(to_json(report))
    run = read_run(tmp_path / "run.json")
    assert run.header == report.header
    assert [record["key"] for record in run.records] == [record.key for record in store.records]
    assert run.provenance == {}


def bad(**changed: object) -> str:
    record = {"key": "k", "op": "o", "layer": "l", "reason": "", "outcome": "pass", "number": 0, "step": 0}
    record |= {"tensors": []}
    document = {"schema": 1, "command": "replay", "store": "s", "records": [{**record, **changed}]}
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", wording("report.unreadable")),
        ("[" * 100_000, wording("report.unreadable")),
        ("[1]", wording("report.not-object", type="list")),
        ('{"schema": 7, "records": []}', "schema 1"),
        ('{"schema": 1, "records": [], "command": "rm"}', wording("report.command-missing")),
        (bad(outcome="fine"), wording("report.outcome-unknown", outcome="fine")),
        (bad(number="x"), wording("report.number-missing")),
        (bad(key=None), wording("report.fields-missing")),
        (bad(tensors={}), wording("report.tensors-missing")),
        (bad(tensors=[3]), wording("report.not-object", type="int")),
    ],
)
def test_what_is_no_run_is_refused_in_a_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(BadInputError, match=says) as caught:
        read_run(path)
    assert "\n" not in str(caught.value)
    assert "run.json" in str(caught.value)


def test_a_capture_is_no_run(store: Store) -> None:
    with pytest.raises(BadInputError, match=wording("report.not-a-run", kind="synth")):
        read_run(store.path)
