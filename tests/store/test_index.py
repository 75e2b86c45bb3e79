# SPDX-License-Identifier: Apache-2.0
"""The index of a batch: what `ls` shows without parsing a record, and never more than that."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.record import RecordDraft, Status
from gdnbench.store import reader
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from gdnbench.store.writer import StoreWriter
from tests.messages import wording
from tests.store.store_samples import PLAIN, TINY, drafts_of, info, randn


def draft(call: int, layer: str, tokens: int, **changes: Any) -> RecordDraft:
    said = replace(info(call), layer=layer, step=call // 2, **changes)
    return RecordDraft(
        said, drafts_of({"q": randn(tokens, 3, seed=call)}), drafts_of({"o": randn(tokens, 2)})
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two batches of one segment: entries 0 to 2, and 10."""
    path = tmp_path / "store.zarr"
    with StoreWriter(
        path, kind="capture", segment="seg", compression=PLAIN, chunking=TINY, durable=False
    ) as w:
        first = [draft(0, "a", 5), draft(1, "b", 5), draft(2, "a", 7, status=Status.UNFINISHED)]
        w.write("0", first)
        w.write("1", [draft(3, "b", 5, layer_index=None, dispatch={"trigger": "nonfinite:o"})], 10)
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the first batch's group says of it."""
    file = path / "segments" / "seg" / "0" / "zarr.json"
    node = json.loads(file.read_text())
    change(node["attributes"]["gdnbench"])
    file.write_text(json.dumps(node))


def rows(path: Path) -> list[tuple[Any, ...]]:
    with Store.open(path) as opened:
        return [
            (r.number, r.key, r.kind.layer, r.step, r.call, r.kind.sizes, r.kind.nbytes, r.kind.status)
            for r in opened.listed()
        ]


# float32: [5, 3] and [5, 2] are 60 + 40 bytes, [7, 3] and [7, 2] 84 + 56.
EXPECTED = [
    (0, "seg/0", "a", 0, 0, {"d0": 5, "d1": 3}, 100, "complete"),
    (1, "seg/1", "b", 0, 1, {"d0": 5, "d1": 3}, 100, "complete"),
    (2, "seg/2", "a", 1, 2, {"d0": 7, "d1": 3}, 140, "unfinished"),
    (3, "seg/10", "b", 1, 3, {"d0": 5, "d1": 3}, 100, "complete"),
]


def test_a_listing_opens_no_array_and_parses_no_record(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("open_array", "from_line"):
        monkeypatch.setattr(reader, name, lambda *_: pytest.fail("read"))
    assert rows(store) == EXPECTED
    with Store.open(store) as opened:
        last = list(opened.listed())[-1].kind
    assert (last.layer_index, last.trigger) == (None, "nonfinite:o")


def test_it_says_what_the_records_say(store: Path) -> None:
    with Store.open(store) as opened:
        assert list(opened.listed()) == [record.listed for record in opened.records]


def test_a_store_without_indexes_is_listed_from_its_records(store: Path) -> None:
    edit(store, lambda batch: batch.pop("index"))
    assert rows(store) == EXPECTED
    assert verify(store).ok


def test_a_zip_is_listed_from_its_indexes(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = shutil.make_archive(str(tmp_path / "store.zarr"), "zip", store)
    monkeypatch.setattr(reader, "open_array", lambda *_: pytest.fail("read"))
    assert rows(Path(packed)) == EXPECTED


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "a later version": lambda index: index.update(version=2),
    "too few numbers": lambda index: index.update(step="0 0"),
    "too many": lambda index: index.update(step="0 0 1 1", kind="0 1 2 0", call="0 1 2 3"),
    "no numbers": lambda index: index.update(call="0 x 2"),
    "a number of another alphabet": lambda index: index.update(call="0 \u0661 2"),
    "a kind that is not there": lambda index: index.update(kind="0 1 9"),
    "a size that is not there": lambda index: index["kinds"][0].__setitem__(4, 9),
    "a negative size": lambda index: index["sizes"][0].update(d0=-1),
    "a status that there is not": lambda index: index["kinds"][0].__setitem__(3, "fine"),
    "a layer that is no text": lambda index: index["kinds"][0].__setitem__(1, {"a": 1}),
    "a column left out": lambda index: index.pop("kind"),
    "sizes in a list": lambda index: index.update(sizes=[["d0", 5], ["d0", 7]]),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_an_index_that_does_not_hold_together_is_passed_over_and_told(
    store: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    edit(store, lambda batch: change(batch["index"]))
    assert rows(store) == EXPECTED
    (damage,) = verify(store).damages
    assert re.search(wording("store.index-wrong", batch="segments/seg/0"), str(damage))


def test_an_index_of_another_shape_is_passed_over(store: Path) -> None:
    for other in (None, [], "text", 3, {"version": 1}):
        edit(store, lambda batch, other=other: batch.update(index=other))
        assert rows(store) == EXPECTED


def test_an_index_that_says_otherwise_changes_no_record_and_is_told(store: Path) -> None:
    def change(batch: dict[str, Any]) -> None:
        batch["index"]["kinds"][0][1] = "another"
        batch["index"]["step"] = "0 7 1"

    edit(store, change)
    with Store.open(store) as opened:
        record = opened.records[0]
        assert (record.info.layer, opened.records[1].info.step) == ("a", 0)
        assert torch.equal(record.before["q"].read(), randn(5, 3, seed=0))
    assert [damage.record for damage in verify(store).damages] == ["seg/0", "seg/1"]


def test_listing_a_store_imports_no_zarr_and_no_torch(store: Path) -> None:
    """They take longer than to list most stores."""
    program = (
        "import sys; from gdnbench.cli.ls import ls; ls(sys.argv[1]);"
        "sys.exit(sorted({'zarr', 'torch'} & sys.modules.keys()) or 0)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, store], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")
    removed = wording("cli.ls-removed", records=7)  # entries 3 to 9
    last = rf"4 records \(1 unfinished: .*\), 1 process, capture store{removed}"
    assert re.fullmatch(last, found.stdout.splitlines()[-1])
