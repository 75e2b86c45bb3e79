# SPDX-License-Identifier: Apache-2.0
"""`gdnbench replay --time --on sim`: predicted times beside the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.moving_kernel import COMMUNICATING, KERNEL, WRONG, rounds
from tests.messages import wording
from tests.sim.predict.tools import toolkit

Invoke = Callable[..., Any]  # the fixture `gdnbench`

ON = ("--on", "sim", "--machine", "h200", "--time")
CLOCK = 1.98e9
DEPENDENT_FMA = 4
"""Cycles until the next FMA that needs the result may issue, on Volta and later (arXiv 1804.06826, 4.1)."""
INSTRUCTIONS, LONGEST_STALL = 4, 15
"""Of a round, none of which reads memory; and the cycles that 4 bits of an instruction hold (2.1 there)."""


@pytest.fixture
def replayed(gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Replays a made record of gdn_decode by a kernel of this text."""
    toolkit(monkeypatch)
    store, file = tmp_path / "made.zarr", tmp_path / "kernel.py"
    options = ("--op", "gdn_decode", "--batch", "1", "--heads", "1,1", "--head-dim", "8,8")
    assert gdnbench("synth", store, *options).code == 0

    def replay(text: str, *more: object) -> Any:
        file.write_text(text)
        return gdnbench("replay", store, "--kernel", f"{file}:kernel", *ON, *more)

    return replay


def predicted(result: Any) -> dict[str, Any]:
    (record,) = json.loads(result.out)["records"]
    (found,) = record["predicted"]
    return dict(found)


def test_a_longer_loop_is_predicted_to_take_longer(replayed: Callable[..., Any]) -> None:
    """Each round has an FMA that needs the one before."""
    few, many = (predicted(replayed(rounds(count), "--no-isolate", "--json")) for count in (100, 1100))
    assert few["machine"] == "h200"
    assert few["low"] < few["seconds"] < few["high"]
    assert few["launches"][0]["entry"] == "move"
    cycles = (many["seconds"] - few["seconds"]) / 1000 * CLOCK
    assert DEPENDENT_FMA <= cycles <= INSTRUCTIONS * LONGEST_STALL


def test_a_kernel_without_a_predicted_time_says_why(replayed: Callable[..., Any], tmp_path: Path) -> None:
    """It passes, which is no reason for exit 0: its time was asked for."""
    result = replayed(COMMUNICATING, "--no-isolate", "--junit", tmp_path / "found.xml")
    assert result.code == 3
    reason = "the time of a kernel whose CTAs may wait for one another"
    assert f"kernel on record 0 gdn_decode synth step 0: {reason}" in result.out
    assert "1 record: 1 pass" in result.out
    assert f"not predicted: {reason}" in (tmp_path / "found.xml").read_text()


def test_a_wrong_kernel_has_a_verdict_and_no_time(replayed: Callable[..., Any]) -> None:
    result = replayed(WRONG, "--no-isolate")
    assert result.code == 1
    assert "numeric mismatch" in result.out
    assert "predicted" not in result.out


@pytest.mark.parametrize("how", [(), ("--workers", "1")])
@pytest.mark.slow
def test_predicted_times_come_from_other_processes(
    replayed: Callable[..., Any], how: tuple[str, ...]
) -> None:
    """Of one launch on one GPU: tensors at other addresses take a sector more or less, well below 1 %."""
    here, there = replayed(KERNEL, "--no-isolate", "--json"), replayed(KERNEL, *how, "--json")
    assert (here.code, there.code) == (0, 0)
    assert predicted(there)["seconds"] == pytest.approx(predicted(here)["seconds"], rel=0.01)
    assert predicted(there)["bound"] == predicted(here)["bound"]
    text = replayed(KERNEL, *how)
    assert text.code == 0
    assert "predicted" in text.out.splitlines()[0]
    assert "note: predicted times are a model's (docs/time_model.md)" in text.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--on", "sim", "--time"), wording("cli.no-time-model", machines="h200, b200, b300")),
        (
            ("--on", "sim", "--time", "--machine", "h100"),
            wording("cli.no-time-model", machines="h200, b200, b300"),
        ),
        ((*ON, "--cache", "warm"), wording("cli.measured-options")),
        (("--on", "cpu", "--time", "--machine", "h200"), wording("replay.gpu-not-simulated")),
    ],
)
def test_what_is_refused(gdnbench: Invoke, prefills: Path, arguments: tuple[str, ...], message: str) -> None:
    result = gdnbench("replay", prefills, "--kernel", "sm100", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"gdnbench: {message}\n"
