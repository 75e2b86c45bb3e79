# SPDX-License-Identifier: Apache-2.0
"""Access logs in a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdnbench.errors import BadInputError, StoreError
from gdnbench.lineage.check import check_stores, tables_of
from gdnbench.lineage.table import AccessTable
from gdnbench.store.access_log import UNKNOWN, AccessFlag, AccessKind
from gdnbench.store.access_pieces import Piece, draft_of_piece
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from tests.lineage.logs import Engine, Options
from tests.messages import wording

POOL = {"name": "state", "pooled": True, "dtype": "bfloat16", "axes": ["Hv", "V", "K"], "shape": [4, 8, 8]}


def write_log(
    path: Path, table: AccessTable, pieces: int, change: Callable[[Any, dict[str, Any]], None] | None = None
) -> None:
    """The rows of `table` in several pieces, each with numbers of its own for requests. `change` may alter
    the rows of a piece, and its arguments."""
    writer = StoreWriter(
        path, kind="capture", compression=Compression(None), chunking=Chunking(), durable=False
    )
    with writer:
        for number, part in enumerate(np.array_split(table.rows, pieces)):
            rows = part.copy()
            used = np.unique(rows["request"][rows["request"] >= 0])[::-1]
            place = np.full(len(table.requests) + 1, -1)
            place[used] = np.arange(len(used))
            rows["request"] = place[rows["request"]]
            names = [table.requests[one] for one in used.tolist()]
            said: dict[str, Any] = {"chains": [POOL], "whole": True, "sample": 1}
            if change is not None:
                change(rows, said)
            piece = Piece(rows, layers=list(table.layers), requests=names, **said)
            writer.write(str(number), [draft_of_piece(piece, 0, number)])


def test_pieces_make_the_table(tmp_path: Path) -> None:
    table = Engine(3, Options(bug="overwritten")).run(60).table()
    write_log(tmp_path / "log.zarr", table, pieces=7)
    with Store.open(tmp_path / "log.zarr") as store:
        (found,) = tables_of(store)
    names = [one.requests[number] for one in (table, found) for number in one.rows["request"] if number >= 0]
    assert names[: len(names) // 2] == names[len(names) // 2 :]
    assert found.whole
    for column in table.rows.dtype.names or ():
        if column != "request":
            assert (table.rows[column] == found.rows[column]).all()


def test_rows_of_another_form_are_not_compared(tmp_path: Path) -> None:
    """As a prefill's float32 states, which the engine rounds to a bfloat16 pool."""

    def gathered(rows: Any, said: dict[str, Any]) -> None:
        prefill = np.isin(rows["call"], list(engine.prefills)) & (rows["kind"] == 1)
        rows["chain"][prefill] = 1
        rows["digest"][prefill] += np.uint64(1)  # not those of the rounded rows
        said["chains"] = [POOL, {**POOL, "pooled": False, "dtype": "float32"}]

    engine = Engine(3, Options()).run(40)
    write_log(tmp_path / "log.zarr", engine.table(), 3, gathered)
    with Store.open(tmp_path / "log.zarr") as store:
        report = check_stores([store])
    assert report.breaks == 0
    assert report.unknown.total() > 10  # what reads the state of a prefill
    assert report.total("right") > 50


@pytest.mark.parametrize("column", ["request", "layer", "chain"])
def test_a_number_without_a_name_is_one_line(tmp_path: Path, column: str) -> None:
    def damage(rows: Any, said: dict[str, Any]) -> None:
        rows[column][-1] = 99

    write_log(tmp_path / "log.zarr", Engine(3, Options()).run(10).table(), 2, damage)
    sentence = wording("lineage.number-unnamed", names=f"{column}s")
    with Store.open(tmp_path / "log.zarr") as store, pytest.raises(StoreError, match=sentence):
        check_stores([store])


@pytest.mark.parametrize(
    ("column", "value"), [("slot", 1 << 60), ("position", -7), ("kind", 5), ("tokens", -3)]
)
def test_a_value_out_of_range_is_one_line(tmp_path: Path, column: str, value: int) -> None:
    def damage(rows: Any, said: dict[str, Any]) -> None:
        rows[column][0] = value

    write_log(tmp_path / "log.zarr", Engine(3, Options()).run(10).table(), 2, damage)
    sentence = wording("lineage.value-out-of-range", column=column, value=value)
    with Store.open(tmp_path / "log.zarr") as store, pytest.raises(StoreError, match=sentence):
        check_stores([store])


def only_padding(rows: Any, said: dict[str, Any]) -> None:
    """As of a call whose batch is padding throughout: an access of nothing, and no pool."""
    rows["kind"], rows["chain"], rows["request"], rows["slot"] = AccessKind.NONE, 0, UNKNOWN, UNKNOWN
    said["chains"] = []


def test_calls_without_any_access_are_no_traceback(tmp_path: Path) -> None:
    write_log(tmp_path / "log.zarr", Engine(3, Options()).run(10).table(), 2, only_padding)
    with Store.open(tmp_path / "log.zarr") as store:
        (table,) = tables_of(store)
        assert list(table.by_chain()) == []
        with pytest.raises(BadInputError, match=wording("lineage.no-access")):
            check_stores([store])


def test_calls_without_any_access_beside_others(tmp_path: Path) -> None:
    """Their steps are not missing."""
    table = Engine(3, Options()).run(60).table()
    first = table.rows["call"][len(table.rows) // 3]

    def padded(rows: Any, said: dict[str, Any]) -> None:
        if rows["call"][0] == 0:
            only_padding(rows, said)

    write_log(tmp_path / "log.zarr", table, 3, padded)
    with Store.open(tmp_path / "log.zarr") as store:
        (found,) = tables_of(store)
        report = check_stores([store])
    (chain,) = found.by_chain()
    assert chain.steps.tolist() == np.unique(table.rows["step"]).tolist()
    assert chain.rows["call"].min() >= first
    assert report.breaks == 0
    assert report.total("right") > 50


def test_rows_of_pools_that_nobody_names_are_one_line(tmp_path: Path) -> None:
    def damage(rows: Any, said: dict[str, Any]) -> None:
        said["chains"] = []

    write_log(tmp_path / "log.zarr", Engine(3, Options()).run(10).table(), 2, damage)
    sentence = wording("lineage.number-unnamed", names="chains")
    with Store.open(tmp_path / "log.zarr") as store, pytest.raises(StoreError, match=sentence):
        check_stores([store])


def test_a_chain_that_is_counted_in_two_ways_is_one_line(tmp_path: Path) -> None:
    def damage(rows: Any, said: dict[str, Any]) -> None:
        rows["flags"][::3] |= np.uint8(AccessFlag.APART)

    write_log(tmp_path / "log.zarr", Engine(3, Options()).run(10).table(), 2, damage)
    sentence = wording("lineage.mixed-counts", chain="state", layer="layer")
    with Store.open(tmp_path / "log.zarr") as store, pytest.raises(StoreError, match=sentence):
        check_stores([store])
