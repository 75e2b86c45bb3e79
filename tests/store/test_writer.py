# SPDX-License-Identifier: Apache-2.0
"""Batches: visible whole or not at all, contents stored once, other people's folders left alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3

from gdnbench.bits import meta_of
from gdnbench.errors import BadInputError, StoreError
from gdnbench.record import RecordDraft, TensorDraft
from gdnbench.store.compression import Compression
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.summary import SegmentSummary, write_summary
from gdnbench.store.verify import verify
from gdnbench.store.writer import StoreWriter
from tests.messages import wording
from tests.store.store_samples import PLAIN, TINY, array_path, drafts_of, info, randn, record


def writer(path: Path, segment: str | None = None, kind: str = "capture") -> StoreWriter:
    return StoreWriter(path, kind=kind, segment=segment, compression=PLAIN, chunking=TINY, durable=False)


def arrays_in(path: Path) -> list[Path]:
    """Arrays that hold tensors."""
    return [file.parent for name in ("rows", "blobs") for file in path.rglob(f"{name}/*/zarr.json")]


def location(found: StoredRecord, when: str, name: str) -> str:
    return str((found.before if when == "before" else found.after)[name].location)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    draft = record({"q": randn(3, 5), "state": randn(2, 8, 8)}, {"o": randn(3, 5, seed=1)})
    process = {"pid": 12, "rank": 0, "started": 1.5}
    with StoreWriter(
        tmp_path / "s", kind="run", segment="seg", process=process, provenance={"git": {"dirty": True}}
    ) as out:
        out.write("0", [draft], first=40)
    with Store.open(tmp_path / "s") as store:
        (found,) = store.records
        assert (store.kind, store.format_version, store.problems) == ("run", 1, ())
        assert (found.number, found.key, found.info) == (0, "seg/40", draft.info)
        assert (found.segment.process, found.segment.provenance) == (process, {"git": {"dirty": True}})
        assert {name: handle.meta for name, handle in found.before.items()} == {
            name: tensor.meta for name, tensor in draft.before.items()
        }
        assert torch.equal(found.after["o"].read(), draft.after["o"].data)
        state = draft.before["state"].data
        assert found.before["state"].digest == blake3(state.numpy().tobytes()).hexdigest()
        assert found.before["state"].nbytes == state.nbytes


def test_values_that_json_lacks_come_back(tmp_path: Path) -> None:
    scalars = {"inf": float("inf"), "ninf": float("-inf"), "nan": float("nan"), "deep": [{"x": [1.5]}]}
    fields = {name: getattr(info(), name) for name in info().__dataclass_fields__} | {"scalars": scalars}
    with writer(tmp_path / "s") as out:
        out.write("0", [RecordDraft(type(info())(**fields), {}, {})])
    with Store.open(tmp_path / "s") as store:
        found = dict(store.records[0].info.scalars)
        line = store.contents.record_lines(store.batches[0])[0]
    assert np.isnan(found.pop("nan"))
    assert found == {name: value for name, value in scalars.items() if name != "nan"}
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))


def test_a_state_that_leaves_one_step_and_enters_the_next_is_stored_once(tmp_path: Path) -> None:
    for size in (4, 40):  # a row of 64 bytes, and an array of its own
        states = [randn(size, size, seed=step) for step in range(5)]
        steps = [record({"state": states[i]}, {"state": states[i + 1]}, i) for i in range(4)]
        path = tmp_path / str(size)
        with writer(path, "seg") as out:
            out.write("0", steps[:2], 0)
            out.write("2", steps[2:3], 2)
        with writer(path, "seg") as out:  # as after a crash
            out.write("3", steps[3:], 3)
        with Store.open(path) as store:
            found = list(store.records)
            for i in range(3):
                assert location(found[i], "after", "state") == location(found[i + 1], "before", "state")
                assert torch.equal(found[i + 1].before["state"].read(), states[i + 1])
            assert len({location(r, when, "state") for r in found for when in ("before", "after")}) == 5
        assert verify(path).ok


def test_equal_bytes_of_another_dtype_or_shape_are_apart(tmp_path: Path) -> None:
    for size in (8, 800):
        zeros = {
            "float": torch.zeros(size),
            "int": torch.zeros(size, dtype=torch.int32),
            "shape": torch.zeros(2, size // 2),
            "bf16": torch.zeros(2 * size, dtype=torch.bfloat16),
            "fp16": torch.zeros(2 * size, dtype=torch.float16),
            "same": torch.zeros(size),
        }
        path = tmp_path / str(size)
        with writer(path) as out:
            out.write("0", [record(zeros)])
        with Store.open(path) as store:
            handles = store.records[0].before
            assert len({handle.digest for handle in handles.values()}) == 1
            assert len({str(handle.location) for handle in handles.values()}) == 5
            assert handles["same"].location == handles["float"].location
            for name, handle in handles.items():
                found = handle.read()
                assert (found.dtype, found.shape) == (zeros[name].dtype, zeros[name].shape)


def test_small_tensors_share_arrays(tmp_path: Path) -> None:
    batch = [record({"q": randn(2, 4, seed=i), "g": randn(4, seed=i)}, call=i) for i in range(100)]
    with writer(tmp_path / "s") as out:
        out.write("0", batch)
    assert len(arrays_in(tmp_path / "s")) == 2
    with Store.open(tmp_path / "s") as store:
        assert [r.info.call for r in store.records] == list(range(100))
        assert all(
            torch.equal(r.before["q"].read(), randn(2, 4, seed=i)) for i, r in enumerate(store.records)
        )


def test_listing_reads_only_the_records(tmp_path: Path) -> None:
    """What makes 10,000 records list in time: no file of a tensor is opened, whatever their number."""
    with writer(tmp_path / "s") as out:
        for first in range(0, 60, 20):
            batch = [
                record({"q": randn(2, 4, seed=i), "k": randn(400)}, call=i) for i in range(first, first + 20)
            ]
            out.write(f"{first}", batch, first)
    for array in arrays_in(tmp_path / "s"):
        (array / "zarr.json").write_text("unreadable")
    with Store.open(tmp_path / "s") as store:
        assert [(r.info.call, r.before["q"].meta.shape) for r in store.records] == [
            (i, (2, 4)) for i in range(60)
        ]
        with pytest.raises(StoreError, match=wording("file.not-json")):
            store.records[0].before["q"].read()


def test_numbering_over_batches_and_segments(tmp_path: Path) -> None:
    with writer(tmp_path / "s", "b") as out:
        out.write("10", [record({}, call=i) for i in (10, 11)], first=10)
        out.write("9", [record({}, call=9)], first=9)
    with writer(tmp_path / "s", "a") as out:
        out.write("x", [record({}, call=0)])
    with Store.open(tmp_path / "s") as store:
        assert [(r.number, r.key) for r in store.records] == [
            (0, "a/0"),
            (1, "b/9"),
            (2, "b/10"),
            (3, "b/11"),
        ]
        assert [r.info.call for r in store.records[1:3]] == [9, 10]
        assert store.records[-1].key == "b/11"
        with pytest.raises(IndexError):
            store.records[4]


def test_a_batch_is_written_once(tmp_path: Path) -> None:
    with writer(tmp_path / "s", "seg") as out:
        assert not out.has("0")
        out.write("0", [record({"q": randn(3)})])
        assert out.has("0")
        with pytest.raises(StoreError, match=wording("store.batch-exists", segment="seg", batch=0)):
            out.write("0", [record({})])
    with Store.open(tmp_path / "s") as store:
        assert [list(r.before) for r in store.records] == [["q"]]


@pytest.mark.parametrize("name", ["", "..", "a/b", "/a", ".hidden", "a\0b", "x" * 201, "a b"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match=wording("store.name-refused", what="segment")):
        writer(tmp_path / "s", name)
    with (
        writer(tmp_path / "t") as out,
        pytest.raises(StoreError, match=wording("store.name-refused", what="batch")),
    ):
        out.write(name, [])
    assert not (tmp_path / "s").exists()


def test_what_cannot_be_stored_leaves_no_trace(tmp_path: Path) -> None:
    good = drafts_of({"q": randn(400)})
    wrong = TensorDraft(randn(3), meta_of(randn(4), ("d0",)))
    odd = type(info())(
        **{n: getattr(info(), n) for n in info().__dataclass_fields__} | {"run": {"x": object()}}
    )
    with writer(tmp_path / "s", "seg") as out:
        with pytest.raises(
            BadInputError,
            match=wording(
                "store.tensor-not-as-described",
                tensor="k",
                dtype="torch.float32",
                shape="(3,)",
                described_dtype="float32",
                described_shape="(4,)",
            ),
        ):
            out.write("0", [RecordDraft(info(), good, {}), RecordDraft(info(), {"k": wrong}, {})])
        with pytest.raises(
            BadInputError,
            match=wording(
                "store.record-unusable", target="model.layers.1.linear_attn", call="0, x", error="object"
            ),
        ):
            out.write("0", [RecordDraft(odd, good, {})])
        with pytest.raises(BadInputError, match=wording("store.batch-name-taken", name="end")):
            out.write("end", [])
        assert not out.has("0")
        out.write("0", [RecordDraft(info(), good, {})])
    assert verify(tmp_path / "s").ok
    assert not (tmp_path / "s" / ".incoming").exists()


def test_what_a_dead_writer_left_is_reported_and_then_cleared(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with writer(path, "seg") as out:
        out.write("0", [record({"q": randn(3)})])
    (path / ".incoming" / "seg" / "1" / "rows").mkdir(parents=True)
    (path / ".journal" / "other").mkdir(parents=True)
    with Store.open(path) as store:
        assert len(store.records) == 1
        unsealed, unfinished = store.problems
        assert re.fullmatch(wording("store.unsealed", segment="other"), unsealed)
        assert re.fullmatch(wording("store.batch-unfinished", segment="seg", batch=1), unfinished)
    (path / ".journal" / "other").rmdir()
    with writer(path, "seg") as out:
        out.write("1", [record({})], 1)
    with Store.open(path) as store:
        assert (len(store.records), store.problems) == (2, ())


def test_what_a_segment_lost_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with writer(path, "seg") as out:
        out.write("0", [record({"q": randn(3)})])
        lost = SegmentSummary(
            closed=False, records=1, dropped=4, torn="record 1", damage=("file 2",), error="disk full"
        )
        write_summary(path, "seg", lost)
    with Store.open(path) as store:
        assert len(store.records) == 1
        assert store.segments[0].end is not None
        said = (
            wording("store.record-unfinished", name="seg", record="record 1"),
            wording("store.calls-dropped", segment="seg", calls=4),
            wording("store.stopped", segment="seg", error="disk full"),
            wording("store.lost", segment="seg", what="file 2"),
        )
        assert re.fullmatch("\n".join(said), "\n".join(store.problems))
    assert verify(path).ok


def test_a_disk_that_refuses_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with writer(tmp_path / "s", "seg") as out:
        monkeypatch.setattr("gdnbench.store.writer.write_array", full)
        with pytest.raises(
            StoreError,
            match=wording(
                "store.batch-unwritable", segment="seg", batch=0, error=re.compile(".*No space left")
            ),
        ):
            out.write("0", [record({"q": randn(400)})])
        monkeypatch.undo()
        out.write("0", [record({"q": randn(400)})])
    assert verify(tmp_path / "s").ok


def test_other_peoples_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    with pytest.raises(
        StoreError, match=wording("store.folder-not-empty", path="thesis", file="chapter.tex")
    ):
        writer(tmp_path / "thesis")
    assert [entry.name for entry in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]
    with pytest.raises(StoreError, match=wording("store.path-is-file")):
        writer(tmp_path / "thesis" / "chapter.tex")
    (tmp_path / "other.zarr").mkdir()
    (tmp_path / "other.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(StoreError, match=wording("store.not-gdnbench")):
        writer(tmp_path / "other.zarr")
    (tmp_path / "empty").mkdir()
    writer(tmp_path / "empty").close()


def test_a_store_keeps_its_kind_and_format(tmp_path: Path) -> None:
    writer(tmp_path / "s").close()
    with pytest.raises(StoreError, match=wording("store.kind-differs", found="capture", kind="run")):
        writer(tmp_path / "s", kind="run")
    with pytest.raises(
        BadInputError, match=wording("store.kind-unknown", kind="backup", known="capture, run, synth")
    ):
        writer(tmp_path / "t", kind="backup")
    root = json.loads((tmp_path / "s" / "zarr.json").read_text())
    root["attributes"]["gdnbench"] |= {"format_version": 2, "created_by": "gdnbench 9.1"}
    (tmp_path / "s" / "zarr.json").write_text(json.dumps(root))
    for opener in (writer, Store.open):
        with pytest.raises(
            StoreError, match=wording("store.format-newer", version=2, writer="gdnbench 9.1", needed=2)
        ):
            opener(tmp_path / "s")


def test_compression_levels(tmp_path: Path) -> None:
    sizes = {}
    for level in (None, 1, 9):
        path = tmp_path / str(level)
        with StoreWriter(path, kind="capture", compression=Compression(level)) as out:
            out.write("0", [record({"t": torch.arange(1 << 18) % 1000})])
        sizes[level] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        text = (array_path(path, "t") / "zarr.json").read_text()
        assert (f'"clevel": {level}' in text, '"zstd"' in text) == (level is not None, level is not None)
    assert sizes[None] > 2 << 20
    # Eight bytes an element, of which six are zero: anything that compresses at all gives a quarter.
    assert max(sizes[1], sizes[9]) < sizes[None] // 4
    with pytest.raises(BadInputError, match=wording("store.compression-level", level=10)):
        Compression(10)


RACER = """
import sys, time
import torch
from tests.store.store_samples import record
from gdnbench.store.writer import StoreWriter
from pathlib import Path
path, gate, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
while not gate.exists():
    time.sleep(0.0005)
for turn in range(12):
    with StoreWriter(path / str(turn), kind="capture", segment=name, durable=False) as out:
        out.write("0", [record({"t": torch.full((9,), float(turn))})])
"""


def test_two_processes_make_one_store_at_the_same_instant(tmp_path: Path) -> None:
    (tmp_path / "stores").mkdir()
    arguments = [str(tmp_path / "stores"), str(tmp_path / "gate")]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, *arguments, name],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("left", "right")
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    (tmp_path / "gate").touch()
    for racer in racers:
        _, errors = racer.communicate(timeout=120)
        assert (racer.returncode, errors) == (0, "")
    for turn in range(12):
        with Store.open(tmp_path / "stores" / str(turn)) as store:
            assert [r.key for r in store.records] == ["left/0", "right/0"]
            assert store.problems == ()
        assert not (tmp_path / "stores" / str(turn) / ".incoming").exists()
