# SPDX-License-Identifier: Apache-2.0
"""What is known of SGLang's signatures held to its source, and its own Python under capture with its kernels
replaced by references. Where SGLang is not installed these are skipped, as its requirements take gigabytes;
its Python alone goes beside what it imports into an environment that has this package, a wheel of 39 MB:

    pip install --no-deps sglang==0.5.23

GDNBENCH_SGLANG_PYTHON names the interpreter of that environment, if it is not this one. Of what SGLang asks
for, its linear attention imports these and what they need, without versions:

    triton einops msgspec orjson pybase64 requests pillow starlette fastapi uvicorn pyzmq aiohttp ipython dill
    sentencepiece compressed-tensors loguru gguf openai partial-json-parser
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gdnbench.capture.adapters import sglang_signatures as names
from gdnbench.capture.adapters.serving_conv import FUNCTIONS as CONVOLUTIONS
from gdnbench.lineage.check import check_stores
from gdnbench.lineage.finding import Break
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from tests.capture.conftest import ToyFramework
from tests.capture.frameworks import FOLDER
from tests.capture.source_signatures import parameters

PROGRAM = Path(__file__).parent / "sglang_program.py"
ROOT = str(Path(__file__).parents[2])
KNOWN = names.SIGNATURES.functions
KERNELS, OPS = "srt/layers/attention/linear/kernels", "kernels/ops/attention"
FILES = {
    **{name: f"{KERNELS}/gdn_triton.py" for name in KNOWN if name.startswith(names.TRITON)},
    **{name: f"{KERNELS}/gdn_flashinfer.py" for name in KNOWN if name.startswith(names.FLASHINFER)},
    **{name: f"{KERNELS}/gdn_cutedsl.py" for name in KNOWN if name.startswith(names.CUTEDSL)},
    names.CHUNK: f"{OPS}/fla/chunk.py",
    names.PACKED: f"{OPS}/fla/fused_recurrent.py",
    names.SIGMOID: f"{OPS}/linear/fused_sigmoid_gating_recurrent.py",
    names.FLASH_MLA: f"{OPS}/flash_mla_interface.py",
    names.FLASH_MLA_SM120: f"{OPS}/flash_mla_sm120.py",
    names.SWAPAB: f"{OPS}/dsv4/decode_attention_sm100.py",
    names.MTP_RING: f"{OPS}/cutedsl_gdn_mtp_ring.py",
    **dict.fromkeys(CONVOLUTIONS, "kernels/ops/mamba/causal_conv1d_triton.py"),
}


def python() -> str:
    return os.environ.get("GDNBENCH_SGLANG_PYTHON", sys.executable)


def folder_of(package: str) -> Path | None:
    """Of an installed package; it is not imported for that."""
    find = f"import importlib.util as u; s = u.find_spec({package!r}); print(s.origin if s else '')"
    ran = subprocess.run([python(), "-c", find], capture_output=True, text=True, timeout=120, check=True)
    return Path(ran.stdout.strip()).parent if ran.stdout.strip() else None


@pytest.fixture(scope="module")
def source() -> Path:
    folder = folder_of("sglang")
    if folder is None:
        pytest.skip("SGLang is not installed; GDNBENCH_SGLANG_PYTHON names an interpreter that has it")
    return folder


@pytest.mark.parametrize("name", FILES)
def test_the_packages_own_source(name: str, source: Path) -> None:
    """Where a release that changed a signature fails this, read the adapter against it, then bring up the
    table and its date."""
    assert parameters(source / FILES[name], name) == KNOWN[name].parameters


@pytest.mark.parametrize("name", FILES)
def test_the_stand_ins_have_the_signatures(name: str) -> None:
    assert parameters(FOLDER / "sglang" / FILES[name], name) == KNOWN[name].parameters


def test_the_kernel_of_older_releases() -> None:
    """It is one of sgl_kernel, which they ask for: the stand-in, and its source where it is installed."""
    known = names.KERNEL_SIGNATURES.functions[names.FLASH_MLA].parameters
    assert parameters(FOLDER / "sgl_kernel/flash_mla.py", names.FLASH_MLA) == known
    source = folder_of("sgl_kernel")
    if source is None:
        pytest.skip("sglang-kernel 0.4.5 to 0.4.7 is not installed in GDNBENCH_SGLANG_PYTHON")
    assert parameters(source / "flash_mla.py", names.FLASH_MLA) == known


def test_what_is_known() -> None:
    assert FILES.keys() == KNOWN.keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", names.SIGNATURES.read)
    for signature in KNOWN.values():
        assert set(signature.needs.split()) <= signature.names


@pytest.mark.timeout(600)
def test_its_own_python(source: Path, toy: ToyFramework, tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GDNBENCH_")}
    plain = subprocess.run(
        [python(), PROGRAM], env=inherited, capture_output=True, text=True, timeout=300, check=False
    )
    assert plain.returncode == 0, plain.stderr
    ran = toy.capture(tmp_path / "run.zarr", [python(), str(PROGRAM)])
    assert ran.status == 0, ran.err
    assert json.loads(ran.out) == json.loads(plain.stdout)
    assert "gdnbench: 4 records" in ran.err
    assert "not recorded" not in ran.err
    assert "problem" not in ran.err
    store = Store.open(tmp_path / "run.zarr")
    infos = [record.info for record in store.records]
    assert [(i.op, i.layer_index, i.dispatch["path"]) for i in infos] == [
        ("gdn_prefill", 3, "chunk"),
        ("gdn_decode", 3, names.PACKED_DECODE),
        ("gdn_decode", 3, names.DECODE),
        ("gdn_decode", 3, names.VERIFY),
    ]
    assert infos[0].dispatch["metadata"] == {"state_indices": [4, 0], "extend_prefix_lens": [0, 12]}
    assert store.records[1].before["state_indices"].read().tolist() == [[4], [-1], [0]]
    assert store.records[3].before["read_indices"].read().tolist() == [4, 0]
    for kernel in ("reference", "torch"):
        report = replay(store, kernel=kernel, against="recorded", isolate=False)
        assert [record.outcome for record in report.records] == [Outcome.PASS] * 4


RUNNER_PROGRAM = Path(__file__).parent / "sglang_runner_program.py"
CLAIMS: list[dict[str, Any]] = [
    {"requests": ["a", "b"], "positions": [0, 0], "slots": [4, 7]},
    {"requests": ["a", "b"], "positions": [5, 3], "slots": [4, 7]},
    {"requests": ["b", "a"], "positions": [4, 8]},
    {"requests": ["b", "a"], "positions": [5, 9], "kept": [0, 1]},
    {"requests": ["a"], "positions": [11]},
    {"requests": ["b"], "positions": [0], "slots": [2]},
    {"requests": ["a"], "positions": [12]},
]
"""Of each call of the runner's program: prompts of 8 and 3 tokens, the first in two chunks; a decode each; of
a's three drafts two are right, of b's one; b is retracted and begins again in another slot."""


@pytest.fixture(scope="module")
def runner(source: Path) -> None:
    """SGLang's runner of models, which imports more of what SGLang asks for than its layers do."""
    module = "sglang.srt.model_executor.model_runner"
    absent = "import sys; from tests.capture.sglang_program import Absent; sys.meta_path.append(Absent())"
    ran = subprocess.run(
        [python(), "-c", f"{absent}; import {module}"],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "PYTHONPATH": ROOT},
    )  # fmt: skip
    if ran.returncode:
        pytest.skip(f"{module} cannot be imported: {ran.stderr.strip().splitlines()[-1]}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_own_runner(runner: None, toy: ToyFramework, tmp_path: Path) -> None:
    command = [python(), str(RUNNER_PROGRAM)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GDNBENCH_")}
    plain = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=300, check=False)
    assert plain.returncode == 0, plain.stderr
    ran = toy.capture(tmp_path / "run.zarr", command)
    assert ran.status == 0, ran.err
    assert json.loads(ran.out) == json.loads(plain.stdout)
    assert "without their requests" not in ran.err
    store = Store.open(tmp_path / "run.zarr")
    found = [record.info.dispatch["lineage"] for record in store.records]
    kept = [claims.pop("kept_digests") for claims in found if "kept" in claims]
    assert [[len(one) for one in digests] for digests in kept] == [[3, 3]]
    assert found == [{**claims, "padding": []} for claims in CLAIMS]
    report = check_stores([store])
    assert (report.breaks, report.total("reads"), report.total("right")) == (0, 11, 11)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wrong_commit_of_its_own_runner(runner: None, toy: ToyFramework, tmp_path: Path) -> None:
    """Of a the state after a draft more than was right."""
    ran = toy.capture(tmp_path / "run.zarr", [python(), str(RUNNER_PROGRAM), "wrong-commit"])
    assert ran.status == 0, ran.err
    (process,) = check_stores([Store.open(tmp_path / "run.zarr")]).processes
    (found,) = [one for chain in process.chains for one in chain.findings]
    assert (found.kind, found.found.position) == (Break.REJECTED_DRAFT, 11)
    assert process.table.requests[found.found.request] == "a"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stale_slots_of_its_own_runner(runner: None, toy: ToyFramework, tmp_path: Path) -> None:
    """In the last step a has the slot of b."""
    ran = toy.capture(tmp_path / "run.zarr", [python(), str(RUNNER_PROGRAM), "stale-slots"])
    assert ran.status == 0, ran.err
    (process,) = check_stores([Store.open(tmp_path / "run.zarr")]).processes
    (found,) = [one for chain in process.chains for one in chain.findings]
    assert (found.kind, found.found.slot, found.found.position) == (Break.SHARED_SLOT, 2, 12)
    assert process.table.requests[found.found.request] == "a"
