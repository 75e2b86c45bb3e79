# SPDX-License-Identifier: Apache-2.0
"""Which records a pruning drops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdnbench.errors import BadInputError
from gdnbench.record import RecordDraft, Status
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.retention import Retention, parse_age
from gdnbench.store.writer import StoreWriter
from tests.messages import wording
from tests.store.store_samples import PLAIN, drafts_of, info, randn

START = 1_700_000_000  # of the first process; the second began an hour later
OLD, NEW = f"{START}000-7-aa", f"{START + 3600}000-8-bb"


@pytest.fixture
def records(tmp_path: Path) -> list[StoredRecord]:
    """Records 0 to 3 of an old process, 4 to 7 of a new one; steps 0 0 1 1, layers a b a b; 40 bytes each."""
    for segment in (OLD, NEW):
        drafts = []
        for n in range(4):
            said = replace(info(n), step=n // 2, layer=f"layers.{'ab'[n % 2]}", op="ab"[n % 2])
            said = replace(said, status=Status.UNFINISHED if n == 3 else Status.COMPLETE)
            drafts.append(RecordDraft(said, drafts_of({"x": randn(10, seed=n)}), {}))
        with StoreWriter(
            tmp_path / "s", kind="capture", segment=segment, compression=PLAIN, durable=False
        ) as out:
            out.write("0", drafts)
    return list(Store.open(tmp_path / "s").records)


CASES: list[tuple[dict[str, Any], list[int]]] = [
    ({"op": "a"}, [0, 2, 4, 6]),
    ({"layer": "*.b"}, [1, 3, 5, 7]),
    ({"steps": "1-4"}, [2, 3, 6, 7]),
    ({"status": "unfinished"}, [3, 7]),
    ({"op": "b", "steps": "0"}, [1, 5]),
    ({"older_than": 1800.0}, [0, 1, 2, 3]),
    ({"older_than": 7200.0}, []),
    ({"max_records": 5}, [0, 1, 2]),
    ({"max_records": 8}, []),
    ({"max_records": 0}, list(range(8))),
    ({"max_bytes": 200}, [0, 1, 2]),
    ({"max_bytes": 199}, [0, 1, 2, 3]),
    ({"max_records": 6, "max_bytes": 120}, [0, 1, 2, 3, 4]),
    ({"op": "b", "max_records": 5}, [1, 3, 5]),
    ({"op": "b", "max_records": 2}, [1, 3, 5, 7]),
    ({"keep": ("0,3-4",)}, [1, 2, 5, 6, 7]),
    ({"keep": (f"{NEW}/2", "0")}, [1, 2, 3, 4, 5, 7]),
    ({"max_records": 5, "keep": ("1",)}, [0, 2, 3]),
]


@pytest.mark.parametrize(("rules", "expected"), CASES, ids=[str(rules) for rules, _ in CASES])
def test_what_is_dropped(records: list[StoredRecord], rules: dict[str, Any], expected: list[int]) -> None:
    now = START + 3600 + 600
    assert [record.number for record in Retention(**rules).dropped(records, now)] == expected


def test_of_a_busy_segment_nothing(records: list[StoredRecord]) -> None:
    found = Retention(max_records=3).dropped(records, START, busy={OLD})
    assert [record.number for record in found] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({}, wording("store.prune-nothing")),
        ({"status": "done"}, wording("store.status-unknown", status="done", known="complete, unfinished")),
    ],
)
def test_refused_before_a_store_is_read(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        Retention(**rules)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ("8", wording("store.keep-missing", number=8, records=8)),
        ("0-8", wording("store.keep-missing", number=8, records=8)),
        ("other/1", wording("store.keep-key-missing", key="other/1")),
        (f"{OLD}/9", wording("store.keep-key-missing", key=f"{OLD}/9")),
    ],
)
def test_a_record_to_keep_that_is_not_there_is_refused(
    records: list[StoredRecord], kept: str, message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        Retention(keep=(kept,)).dropped(records, START)


def test_ages() -> None:
    assert [parse_age(text, "--older-than") for text in ("90s", "1.5h", "7d", "2w")] == [
        90,
        5400,
        604800,
        1209600,
    ]
    with pytest.raises(BadInputError, match=wording("store.age-wrong", option="--older-than", text="7")):
        parse_age("7", "--older-than")
