"""`gdnbench bisect record` as a command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording

pytestmark = pytest.mark.usefixtures("probes_here")
CAPTURED = Path(__file__).parents[2] / "captures" / "decode.zarr.zip"

KERNELS = """
import torch
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent


def late(**call):
    given = {name: x for name, x in call.items() if name not in ("state_layout", "offsets", "o")}
    big = bool(given["state"].abs().max() > LEVEL)
    found = torch_recurrent(**given)
    if big:
        given["state"][0, 1] *= 1.01
    return found


late.conventions = {"qk": ("normalised", "raw")}
"""


def test_the_call_is_named_and_the_answer_is_the_last_line(gdnbench: Any, tmp_path: Path) -> None:
    """Wrong from the first call on whose state exceeds a level, which the recorded states tell."""
    from gdnbench.store.recover import open_store

    with open_store(CAPTURED) as store:
        sizes = [float(record.before["state"].read().abs().max()) for record in store.records]
    level = max(sizes[:4])
    first = next(number for number, size in enumerate(sizes) if size > level)
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


def test_what_passes_carried_too(gdnbench: Any, tmp_path: Path) -> None:
    given = ("--kernel", "torch", "--carry", "--state", tmp_path / "s")
    result = gdnbench("bisect", "record", CAPTURED, "0-19", *given)
    assert result.code == 0, result.err
    passes = re.compile(wording("bisect.calls-pass", kernel="torch", calls=20, plural="s"))
    assert re.fullmatch(
        wording("bisect.calls-pass-carried", alone=passes, calls=20, lanes="1 lane") + "\n", result.out
    )
