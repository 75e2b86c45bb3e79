# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect record` as a command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.messages import wording

pytestmark = pytest.mark.usefixtures("probes_here")
CAPTURED = Path(__file__).parents[2] / "captures" / "decode.zarr.zip"

KERNELS = """
import torch
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent


def late(**call):
    given = {name: x for name, x in call.items() if name not in ("state_layout", "offsets", "o")}
    small = bool(given["state"].abs().max() < LEVEL)
    found = torch_recurrent(**given)
    if small:
        given["state"][0, 1] *= 1.01
    return found


late.conventions = {"qk": ("normalised", "raw")}
"""


def test_the_call_is_named_and_the_answer_is_the_last_line(gdnbench: Any, tmp_path: Path) -> None:
    """Wrong from the first call on whose state is below a level, which the recorded states tell."""
    from gdnbench.store.recover import open_store

    with open_store(CAPTURED) as store:
        sizes = [float(record.before["state"].read().abs().max()) for record in store.records]
    level = min(sizes[:4])
    first = next(number for number, size in enumerate(sizes) if size < level)
    assert first >= 4
    (tmp_path / "mine.py").write_text(KERNELS.replace("LEVEL", repr(level)))
    given = (
        "bisect",
        "record",
        CAPTURED,
        "--kernel",
        f"{tmp_path / 'mine.py'}:late",
        "--state",
        tmp_path / "s",
    )
    result = gdnbench(*given)
    assert result.code == 1, result.err
    last = result.out.splitlines()[-1]
    assert f"(record {first}, gdn_decode)" in last
    assert re.search(wording("bisect.starts-carried") + "$", last)
    again = gdnbench(*given, "--json")
    found = json.loads(again.out)
    assert (found["axis"], found["first"]["record"], found["answer"]) == ("record", first, last)
    assert found["before"] == list(range(first))


BOTH = """
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent


def both(*, state_layout, offsets=None, o=None, **call):
    \"\"\"Wrong for one sequence, a crash for two.\"\"\"
    if len(call["state_indices"]) > 1:
        raise IndexError("a second sequence")
    found = torch_recurrent(**call)
    return {**found, "o": 2 * found["o"]}
"""


@pytest.mark.parametrize(
    ("symptom", "record"), [(None, 0), ("numbers", 1), pytest.param("crash", 0, marks=pytest.mark.slow)]
)
def test_the_kind_of_failure_that_is_looked_for(
    gdnbench: Any, tmp_path: Path, symptom: str | None, record: int
) -> None:
    """Two calls, of two sequences and then of one."""
    (tmp_path / "mine.py").write_text(BOTH)
    with StoreWriter(tmp_path / "s.zarr", kind="synth", durable=False) as writer:
        calls = [synthesise("gdn_decode", batch=n, heads=(1, 1), head_dim=(8, 8)) for n in (2, 1)]
        writer.write("0", [draft("gdn_decode", call, index=n) for n, call in enumerate(calls)])
    given = ("--kernel", f"{tmp_path / 'mine.py'}:both", "--state", tmp_path / "state", "--json")
    given += () if symptom is None else ("--symptom", symptom)
    for axis in ("record", "input") if symptom == "crash" else ("record",):
        more = ("0", "--out", tmp_path / "small.zarr") if axis == "input" else ()
        result = gdnbench("bisect", axis, tmp_path / "s.zarr", *more, *given)
        assert result.code == 1, result.err
        found = json.loads(result.out)
        if axis == "record":
            assert found["first"]["record"] == record
        else:
            assert found["after"]["sequence"] == 2


def test_what_passes_carried_too(gdnbench: Any, tmp_path: Path) -> None:
    given = ("--kernel", "torch", "--carry", "--state", tmp_path / "s")
    result = gdnbench("bisect", "record", CAPTURED, "0-11", *given)
    assert result.code == 0, result.err
    passes = re.compile(wording("bisect.calls-pass", kernel="torch", calls=12, plural="s"))
    assert re.fullmatch(
        wording("bisect.calls-pass-carried", alone=passes, calls=12, lanes="1 lane") + "\n", result.out
    )
