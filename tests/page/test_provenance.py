# SPDX-License-Identifier: Apache-2.0
"""Who captured and who replayed, side by side."""

from __future__ import annotations

from typing import Any

from gdnbench.page.provenance import provenance


def test_sides_and_what_differs(made: Any) -> None:
    newer = {"git": {"sha": "c" * 40}, "packages": {"torch": "2.13.0"}, "python": "3.11.7"}
    found = provenance([made.run([], "a"), made.run([], "b", provenance=newer)])
    assert found["columns"] == [
        {"title": "captured", "of": "run.zarr"},
        {"title": "replayed", "of": "a"},
        {"title": "replayed", "of": "b"},
    ]
    rows = {row["name"]: (row["values"], row["differs"]) for row in found["rows"]}
    assert rows["git sha"] == (["b" * 40, "a" * 40, "c" * 40], True)
    assert rows["git dirty"] == (["False", "False", None], True)
    assert rows["packages torch"] == (["2.11.0", "2.13.0", "2.13.0"], True)
    assert rows["python"] == (["3.11.7"] * 3, False)
    assert rows["host"] == (["gpu-7", "laptop", "laptop"], True)
    assert not rows["time"][1]  # no two processes have it in common
    assert "pid" not in rows
    assert found["rows"][0]["name"].startswith("git")


def test_processes_of_one_capture_that_are_alike_stand_once(made: Any) -> None:
    side = {"provenance": {"python": "3.12"}, "process": {"host": "h", "time": "1", "pid": 1}}
    later = {"provenance": {"python": "3.12"}, "process": {"host": "h", "time": "2", "pid": 2}}
    found = provenance([made.run([], captured={"a": side, "b": later})])
    assert [column["title"] for column in found["columns"]] == ["captured", "replayed"]


def test_made_records_come_from_nowhere(made: Any) -> None:
    found = provenance([made.run([], captured={"a": {"provenance": {}, "process": {}}})])
    assert [column["title"] for column in found["columns"]] == ["replayed"]
    assert not any(row["differs"] for row in found["rows"])


def test_a_file_of_json_knows_no_provenance(made: Any) -> None:
    assert provenance([made.run([], provenance={}, process={}, captured={})]) == {"columns": [], "rows": []}
