# SPDX-License-Identifier: Apache-2.0
"""What several ranks recorded, listed side by side and merged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.messages import wording

Invoke = Callable[..., Any]


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Two nodes of one rank each, the later rank first; two steps of two layers."""
    call = synthesise("gdn_decode", heads=(1, 1), head_dim=(8, 8), batch=1, slots=2, seed=0)
    made = []
    for order, rank in enumerate((1, 0)):
        process = {"rank": rank, "world_size": 2, "parallel": {"tp": [rank, 2], "pp": [0, 1]}}
        drafts = []
        for step in (0, 1):
            for layer in ("up", "down"):
                record = draft("gdn_decode", call)
                drafts.append(replace(record, info=replace(record.info, layer=layer, step=step)))
        path = tmp_path / f"node{order}.zarr"
        with StoreWriter(
            path, kind="capture", segment=f"{order}-5-a", process=process, durable=False
        ) as writer:
            writer.write("0", drafts)
        made.append(path)
    return made


def test_ranks_are_merged_and_listed_side_by_side(
    gdnbench: Invoke, nodes: list[Path], tmp_path: Path
) -> None:
    run = tmp_path / "run.zarr"
    merged = gdnbench("merge", run, *nodes)
    assert (merged.code, merged.err) == (0, "")
    assert merged.out == f"8 records of 2 processes merged into {run}\n"
    header, *rows, _ = gdnbench("ls", run, "--order", "step").out.splitlines()
    assert header.split()[:5] == ["#", "rank", "op", "layer", "step"]
    shown = [tuple(row.split()[:6]) for row in rows]
    assert [(rank, tp, layer, step) for _, rank, tp, _, layer, step in shown] == [
        (rank, f"tp{rank}", layer, step) for step in "01" for layer in ("up", "down") for rank in "01"
    ]
    stored = json.loads(gdnbench("ls", run, "--json").out)
    assert [record["rank"] for record in stored] == [1] * 4 + [0] * 4
    assert "4 of 8 records" in gdnbench("ls", run, "--rank", "tp1").out
    assert gdnbench("ls", run, "--rank", "one").code == 2
    assert "  rank: 1 tp1\n" in gdnbench("show", run, 0).out


def test_layers_of_a_step_are_in_the_order_of_their_numbers(gdnbench: Invoke, tmp_path: Path) -> None:
    """As a trigger leaves them: the layer that it held for first, those around it behind."""
    call = synthesise("gdn_decode", heads=(1, 1), head_dim=(8, 8), batch=1, slots=2, seed=0)
    record = draft("gdn_decode", call)
    kept = [("b", 10, "nonfinite:o"), ("none", None, "around:call 1"), ("a", 2, None)]
    drafts = [
        replace(
            record,
            info=replace(
                record.info,
                layer=layer,
                layer_index=index,
                dispatch={} if trigger is None else {"trigger": trigger},
            ),
        )
        for layer, index, trigger in kept
    ]
    with StoreWriter(tmp_path / "run.zarr", kind="capture", segment="0-5-a", durable=False) as writer:
        writer.write("0", drafts)
    header, *rows, _ = gdnbench("ls", tmp_path / "run.zarr", "--order", "step").out.splitlines()
    assert [row.split()[2] for row in rows] == ["a", "b", "none"]
    where = header.index("kept for")
    assert [row[where:].strip() for row in rows] == ["", "nonfinite:o", "around:call 1"]
    listed = json.loads(gdnbench("ls", tmp_path / "run.zarr", "--json").out)
    assert [record["trigger"] for record in listed] == ["nonfinite:o", "around:call 1", None]


def test_what_is_not_merged_is_said(gdnbench: Invoke, nodes: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "run.zarr"
    assert gdnbench("merge", run, *nodes).code == 0
    assert "merged into" in gdnbench("merge", run, *nodes).out
    assert json.loads(gdnbench("merge", run, *nodes, "--json").out)["already"] == 2
    (nodes[0] / "segments/0-5-a/0/zarr.json").unlink()
    refused = gdnbench("merge", tmp_path / "other.zarr", *nodes)
    assert refused.code == 1
    assert re.match(wording("cli.not-merged"), refused.err)
    assert gdnbench("merge", nodes[0], *nodes).code == 2
