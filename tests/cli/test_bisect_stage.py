# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect stage` as a command: table, answer, JSON, exit codes; probes in a process of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording

KERNELS = """
from dataclasses import replace

from gdnbench_kernels.gdn_prefill.steps import TORCH_STEPS, torch_steps


def form_uw(**call):
    made = torch_steps.form_uw(**call)
    made["W"] = made["W"] * 1.5
    return made


STEPS = tuple(replace(step, target=form_uw) if step.name == "form_uw" else step for step in TORCH_STEPS)


def wrong_w(*, stages=None, **call):
    made = {}
    for step in STEPS:
        function = step.target if callable(step.target) else getattr(torch_steps, step.name)
        made |= function(**call, stages={name: made[name] for name in step.takes})
    if stages is not None:
        stages.update({name: made[name] for name in ("g_cu", "A", "Ai", "U", "W", "h", "V_new", "P")})
    return {name: made[name] for name in ("o", "final_state")}


wrong_w.steps = STEPS
"""


@pytest.mark.usefixtures("replays_here")
def test_the_stage_is_named_and_the_answer_is_the_last_line(
    gdnbench: Any, prefills: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(KERNELS)
    given = (
        "bisect",
        "stage",
        prefills,
        "--kernel",
        f"{tmp_path / 'mine.py'}:wrong_w",
        "--state",
        tmp_path / "s",
    )
    result = gdnbench(*given)
    assert result.code == 1, result.err
    lines = result.out.splitlines()
    assert [line.split()[-1] for line in lines if line.split()[:2] == ["W", "form_uw"]] == ["adds"]
    assert lines[-1].startswith("W of ")
    assert re.search(wording("bisect.stage-mended", stage="W") + "$", lines[-1])
    again = gdnbench(*given, "--json")
    assert again.code == 1
    assert "(known)" in again.err
    found = json.loads(again.out)
    assert (found["axis"], found["first"], found["answer"]) == ("stage", "W", lines[-1])
    assert found["grafts"] == [{"exact": ["W"], "passes": True, "reason": ""}]


@pytest.mark.usefixtures("probes_here")
def test_what_passes_and_what_has_no_stages(gdnbench: Any, prefills: Path, tmp_path: Path) -> None:
    result = gdnbench("bisect", "stage", prefills, "0", "--kernel", "torch", "--state", tmp_path / "s")
    assert result.code == 0
    assert re.fullmatch(
        wording("bisect.stages-pass", kernel="torch", records="1 record"), result.out.splitlines()[-1]
    )
    result = gdnbench("bisect", "stage", prefills, "--kernel", "hf", "--state", tmp_path / "s")
    assert result.code == 2
    assert re.search(wording("bisect.stages-invisible", kernel="hf"), result.err)
    assert "Traceback" not in result.err
