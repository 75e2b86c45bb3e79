# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect commit` on copies of vLLM's and SGLang's GDN kernels with a planted fault, their own races
left in.

Tests do not install either: GDNBENCH_VLLM and GDNBENCH_SGLANG name folders that have them, see
tests/replay/test_vllm_simulated.py and tests/replay/test_sglang_simulated.py. The copy is made from there,
without its compiled extensions, into a repository in a temporary folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.replay.engines import copy_package, write_vllm_adapter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # about three minutes each
ROOT = Path(__file__).resolve().parents[2]
VLLM = "vllm/model_executor/layers/mamba/ops/gdn_chunk_cutedsl"
SGLANG = "sglang/kernels/ops/attention/linear/gdn_blackwell"  # a copy of vLLM's
FILES = ("kernel_h.py", "kernel_kkt_inv_uw.py", "kernel_o.py", "__init__.py")
COMMITS, GUILTY = 16, 11
LAST, FENCE = "last_idx = end_t - 1", "                    fence_before_tma_store()\n"


def off_by_one(folder: Path) -> None:
    file = folder / "kernel_h.py"
    before, found, after = file.read_text().rpartition(LAST)
    assert found
    file.write_text(f"{before}last_idx = end_t - 2{after}")


def without_a_fence(folder: Path) -> None:
    file = folder / "kernel_o.py"
    assert file.read_text().count(FENCE) == 1
    file.write_text(file.read_text().replace(FENCE, ""))


@pytest.mark.parametrize(
    ("kernels", "plant", "symptom", "said"),
    [
        (VLLM, off_by_one, "numbers", "o: RMS error"),
        (VLLM, without_a_fence, "race", "no proxy fence"),
        (SGLANG, off_by_one, "numbers", "o: RMS error"),
    ],
)
def test_the_commit_is_named_with_their_own_races_left_in(
    gdnbench: Callable[..., Any],
    history: Any,
    tmp_path: Path,
    kernels: str,
    plant: Callable[[Path], None],
    symptom: str,
    said: str,
) -> None:
    package = kernels.partition("/")[0]
    variable = f"GDNBENCH_{package.upper()}"
    if not (packages := os.environ.get(variable)):
        pytest.skip(f"{variable} names no folder with {package}")
    copy_package(packages, package, history.path)
    made = [history.commit("Begin", {})]
    for number in range(1, COMMITS):
        if number == GUILTY:
            plant(history.path / kernels)
            made.append(history.commit("Tidy", {}))
            continue
        name = f"{kernels}/{FILES[number % len(FILES)]}"
        text = (history.path / name).read_text()
        moved = text.replace("\n\n\nclass", "\n\n\n# Moves every line below.\nclass", 1)
        made.append(history.commit(f"Note {number}", {name: f"{moved}# {number}\n"}))
    theirs = write_vllm_adapter(tmp_path / "theirs.py")
    text = theirs.read_text().replace(VLLM.replace("/", "."), kernels.replace("/", "."))
    theirs.write_text(text.replace('"vllm"', f'"{package}"'))
    result = gdnbench(
        *("bisect", "commit", ROOT / "captures" / "prefill.zarr.zip", "3", "--repo", history.path),
        *("--good", made[0], "--bad", made[-1], "--kernel", f"{theirs}:prefill"),
        *("--kernel-env", packages, "--on", "sim", "--symptom", symptom, "--schedule", "late"),
        *("--state", tmp_path / "state", "--json"),
    )
    assert result.code == 1, result.err
    found = json.loads(result.out)
    assert found["commit"]["hash"] == made[GUILTY]
    assert said in found["commit"]["verdict"]["reason"]
