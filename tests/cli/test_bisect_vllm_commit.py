"""`gdnbench bisect commit` on a copy of vLLM's GDN kernels with a planted fault, their own races left in.

Tests do not install vLLM: GDNBENCH_VLLM names a folder that has it, see tests/replay/test_vllm_simulated.py.
The copy is made from there, without its compiled extensions, into a repository in a temporary folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # about three minutes each
ROOT = Path(__file__).resolve().parents[2]
FOLDER = "GDNBENCH_VLLM"
KERNELS = "vllm/model_executor/layers/mamba/ops/gdn_chunk_cutedsl"
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
    ("plant", "symptom", "said"),
    [(off_by_one, "numbers", "o: RMS error"), (without_a_fence, "race", "no proxy fence")],
)
def test_the_commit_is_named_with_vllms_own_races_left_in(
    gdnbench: Callable[..., Any],
    history: Any,
    tmp_path: Path,
    plant: Callable[[Path], None],
    symptom: str,
    said: str,
) -> None:
    if not (packages := os.environ.get(FOLDER)):
        pytest.skip(f"{FOLDER} names no folder with vLLM")
    compiled = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(Path(packages) / "vllm", history.path / "vllm", ignore=compiled)
    made = [history.commit("Begin", {})]
    for number in range(1, COMMITS):
        if number == GUILTY:
            plant(history.path / KERNELS)
            made.append(history.commit("Tidy", {}))
            continue
        name = f"{KERNELS}/{FILES[number % len(FILES)]}"
        text = (history.path / name).read_text()
        moved = text.replace("\n\n\nclass", "\n\n\n# Moves every line below.\nclass", 1)
        made.append(history.commit(f"Note {number}", {name: f"{moved}# {number}\n"}))
    adapter = re.search(
        r"```python file=theirs.py\n(.*?)```", (ROOT / "docs" / "adding.md").read_text(), re.DOTALL
    )
    assert adapter is not None
    (tmp_path / "theirs.py").write_text(adapter[1])
    result = gdnbench(
        *("bisect", "commit", ROOT / "captures" / "prefill.zarr.zip", "3", "--repo", history.path),
        *("--good", made[0], "--bad", made[-1], "--kernel", f"{tmp_path / 'theirs.py'}:prefill"),
        *("--kernel-env", packages, "--on", "sim", "--symptom", symptom, "--schedule", "late"),
        *("--state", tmp_path / "state", "--json"),
    )
    assert result.code == 1, result.err
    found = json.loads(result.out)
    assert found["commit"]["hash"] == made[GUILTY]
    assert said in found["commit"]["verdict"]["reason"]
