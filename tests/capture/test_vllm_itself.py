# SPDX-License-Identifier: Apache-2.0
"""vLLM's own Python under capture, its kernels replaced by references, and what is known of its signatures
held to its source. Where vLLM is not installed these are skipped, as its requirements take gigabytes; its
Python alone goes beside what it imports into an environment that has this package:

    VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=0.33.0 pip install --no-deps --no-build-isolation \
        --no-binary vllm vllm==0.33.0

GDNBENCH_VLLM_PYTHON names the interpreter of that environment, if it is not this one. Its runner of models
also imports these and what they need, without versions:

    cbor2 pyzmq aiohttp openai openai-harmony pillow pybase64 cachetools msgspec uvloop py-cpuinfo
    prometheus-client xgrammar fastapi starlette opentelemetry-api partial-json-parser llguidance
    compressed-tensors loguru
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from gdnbench.capture.adapters import vllm_signatures as names
from gdnbench.capture.adapters.serving_conv import FUNCTIONS as CONVOLUTIONS
from gdnbench.capture.adapters.vllm import VllmAdapter
from gdnbench.capture.adapters.vllm_deepseek_v4 import VllmDeepseekV4Adapter
from gdnbench.lineage.check import check_stores
from gdnbench.lineage.finding import Break
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from tests.capture.conftest import ToyFramework
from tests.capture.frameworks import FOLDER
from tests.capture.source_signatures import parameters

PROGRAM = Path(__file__).parent / "vllm_program.py"
KNOWN = names.SIGNATURES.functions
OPS = "third_party/flash_linear_attention/ops"
QWEN = "model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py"
FUSED = ("_forward_core_fused_norm", "_forward_core_fused_norm_packed")
METHODS = ("forward_cuda", "forward_native", "forward_cutedsl", "forward_aiter_flydsl")
FILES = {
    names.CHUNK: f"{OPS}/chunk.py",
    names.RECURRENT: f"{OPS}/fused_recurrent.py",
    names.PACKED: f"{OPS}/fused_recurrent.py",
    names.SIGMOID: f"{OPS}/fused_sigmoid_gating.py",
    names.CHUNK_FLASHINFER: QWEN,
    names.MTP: "_custom_ops.py",
    names.MTP_TRITON: f"{OPS}/fused_gdn_decode_post_conv_mtp.py",
    names.CHUNK_CUTEDSL: "model_executor/layers/mamba/ops/gdn_chunk_cutedsl/__init__.py",
    **{f"ChunkGatedDeltaRule.{method}": QWEN for method in METHODS},
    **dict.fromkeys(CONVOLUTIONS, "model_executor/layers/mamba/ops/causal_conv1d.py"),
}
STAND_INS = [name for name in FILES if name not in (names.CHUNK_CUTEDSL, names.MTP_TRITON)]
FLASH_MLA = "models/deepseek_v4/nvidia/flashmla.py"
ELSEWHERE = {
    "OlmoHybridGatedDeltaNetAttention": ("_forward_core_rocm", *FUSED),
}
"""Scopes that one layer has and the other lacks."""


def python() -> str:
    return os.environ.get("GDNBENCH_VLLM_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def source() -> Path:
    """vLLM's folder; it is not imported for that."""
    find = "import importlib.util as u; s = u.find_spec('vllm'); print(s.origin if s else '')"
    ran = subprocess.run([python(), "-c", find], capture_output=True, text=True, timeout=120, check=True)
    if not ran.stdout.strip():
        pytest.skip("vLLM is not installed; GDNBENCH_VLLM_PYTHON names an interpreter that has it")
    return Path(ran.stdout.strip()).parent


def known_of(name: str) -> str:
    return KNOWN[names.FORWARD if name.startswith("ChunkGatedDeltaRule.") else name].parameters


@pytest.mark.parametrize("name", FILES)
def test_the_packages_own_source(name: str, source: Path) -> None:
    """Where a release that changed a signature fails this, read the adapter against it, then bring up the
    table and its date."""
    assert parameters(source / FILES[name], name) == known_of(name)


@pytest.mark.parametrize("name", STAND_INS)
def test_the_stand_ins_have_the_signatures(name: str) -> None:
    assert parameters(FOLDER / "vllm" / FILES[name], name) == known_of(name)


def test_the_stand_in_of_flash_mla_has_its_signature() -> None:
    assert parameters(FOLDER / "vllm" / FLASH_MLA, names.FLASH_MLA) == known_of(names.FLASH_MLA)


@pytest.mark.parametrize("adapter", [VllmAdapter(), VllmDeepseekV4Adapter()])
def test_layers_are_where_the_scopes_say(adapter: VllmAdapter | VllmDeepseekV4Adapter, source: Path) -> None:
    """Every class of the layers' names, and no other: a new model with one of them is a new scope."""
    scopes: dict[str, set[str]] = {}
    for scope in adapter.scopes:
        layer, method = scope.function.split(".")
        path = source.parent / f"{scope.module.replace('.', '/')}.py"
        scopes.setdefault(layer, set()).add(scope.module)
        if method not in ELSEWHERE.get(layer, ()):
            assert method in methods_of(path, layer), f"{scope.name} is not in vLLM's source"
    for layer, modules in scopes.items():
        assert modules == {
            ".".join(path.relative_to(source.parent).with_suffix("").parts)
            for path in source.rglob("*.py")
            if f"\nclass {layer}(" in path.read_text()
        }


def methods_of(path: Path, layer: str) -> set[str]:
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    (found,) = (one for one in classes if one.name == layer)
    return {node.name for node in found.body if isinstance(node, ast.FunctionDef)}


def test_flash_mla_is_called_as_it_is_known(source: Path) -> None:
    tree = ast.parse((source / FLASH_MLA).read_text())
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == names.FLASH_MLA
    ]
    assert calls
    for call in calls:
        given = {keyword.arg for keyword in call.keywords}
        assert given <= KNOWN[names.FLASH_MLA].names
        assert set(KNOWN[names.FLASH_MLA].needs.split()) <= given


def test_what_is_needed_is_known() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", names.SIGNATURES.read)
    for signature in KNOWN.values():
        assert set(signature.needs.split()) <= signature.names


@pytest.fixture(scope="module")
def plain(source: Path) -> dict[str, str]:
    """What the program prints when nobody captures it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GDNBENCH_")}
    ran = subprocess.run(
        [python(), PROGRAM], env=inherited, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str] = json.loads(ran.stdout)
    return found


@pytest.mark.timeout(600)
def test_its_own_python(plain: dict[str, str], toy: ToyFramework, tmp_path: Path) -> None:
    ran = toy.capture(tmp_path / "run.zarr", [python(), str(PROGRAM)])
    assert ran.status == 0, ran.err
    assert json.loads(ran.out) == plain
    assert "gdnbench: 11 records" in ran.err
    assert "not recorded" not in ran.err
    assert "problem" not in ran.err
    store = Store.open(tmp_path / "run.zarr")
    told = [
        (i.op, i.layer_index, i.dispatch.get("backend", i.dispatch["path"]))
        for i in (r.info for r in store.records)
    ]
    assert told == [
        ("gdn_prefill", 3, "flashinfer"),
        ("gdn_prefill", 3, "triton"),
        ("gdn_prefill", 3, "cutedsl"),
        ("gdn_decode", 3, names.SIGMOID),
        ("gdn_prefill", 3, "triton"),
        ("gdn_decode", 3, names.PACKED),
        ("gdn_decode", 3, names.SIGMOID),
        ("gdn_decode", 3, names.SIGMOID),
        ("gdn_decode", 3, names.SIGMOID),
        ("swa_decode", 0, "flashmla"),
        ("gdn_decode", 3, names.MTP),
    ]
    dispatch = [record.info.dispatch for record in store.records]
    assert dispatch[0]["metadata"]["state_indices"] == [4, 7]
    assert dispatch[0]["metadata"]["has_initial_state"] == [False, True]
    assert dispatch[4]["metadata"]["num_decode_tokens"] == 2
    assert dispatch[8]["metadata"]["num_accepted_tokens"] == [1, 2]
    assert dispatch[9]["metadata"]["seq_lens"] == [198, 9, 0]
    for kernel in ("reference", "torch"):
        outcomes = [
            r.outcome for r in replay(store, kernel=kernel, against="recorded", isolate=False).records
        ]
        assert outcomes == [*[Outcome.PASS] * 10, Outcome.NOT_COMPARABLE]
    (fused,) = replay(store, kernel="torch", records=(10,), isolate=False).records
    assert fused.outcome is Outcome.PASS


RUNNER_PROGRAM = Path(__file__).parent / "vllm_runner_program.py"
RUNNER = "vllm.v1.worker.gpu_model_runner"


@pytest.fixture(scope="module")
def runner(source: Path) -> None:
    """vLLM's runner of models, which imports more of what vLLM asks for than its layers do."""
    ran = subprocess.run(
        [python(), "-c", f"import {RUNNER}"], capture_output=True, text=True, timeout=300, check=False
    )
    if ran.returncode:
        pytest.skip(f"{RUNNER} cannot be imported: {ran.stderr.strip().splitlines()[-1]}")


def prefix(*tokens: int) -> str:
    return blake3(np.array(tokens, dtype=np.int64).tobytes()).hexdigest()[:16]


CLAIMS: list[dict[str, Any]] = [
    {"requests": ["a", "b"], "positions": [0, 0], "prefixes": [None, None], "slots": [1, 4]},
    {"requests": ["b"], "positions": [3], "prefixes": [prefix(2, 7, 1)]},
    {"requests": ["a"], "positions": [5], "prefixes": [prefix(3, 1, 4, 1, 5)], "slots": [1]},
    {"requests": ["a", "b"], "positions": [8, 5], "prefixes": [prefix(3, 1, 4, 1, 5, 9, 2, 6), None]},
    {"requests": ["a"], "positions": [11], "prefixes": [None]},
    {"requests": ["a"], "positions": [12], "prefixes": [None]},
    {"requests": ["b"], "positions": [0], "prefixes": [None], "slots": [7]},
    {"requests": ["a", "b"], "positions": [13, 7], "prefixes": [None, None]},
]
"""Of each call of the runner's program: prompts of 8 and 3 tokens, the first in two chunks; of b's drafts one
was right, of a's two; b is preempted and begins again in other slots."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scheduling", ["", "asynchronous"])
def test_its_own_runner(scheduling: str, runner: None, toy: ToyFramework, tmp_path: Path) -> None:
    """Where the host's counts of tokens run ahead, the claims are the device's."""
    command = [python(), str(RUNNER_PROGRAM), scheduling]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GDNBENCH_")}
    plain = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=300, check=False)
    assert plain.returncode == 0, plain.stderr
    ran = toy.capture(tmp_path / "run.zarr", command)
    assert ran.status == 0, ran.err
    assert json.loads(ran.out) == json.loads(plain.stdout)
    assert "without their requests" not in ran.err
    store = Store.open(tmp_path / "run.zarr")
    found = [record.info.dispatch["lineage"] for record in store.records]
    assert found == [{**claims, "padding": []} for claims in CLAIMS]
    report = check_stores([store])
    assert (report.breaks, report.total("reads"), report.total("right")) == (0, 11, 11)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stale_slots_of_its_own_runner(runner: None, toy: ToyFramework, tmp_path: Path) -> None:
    """Of b's two tokens that were right the state after the second is in slot 5; it reads slot 4."""
    ran = toy.capture(tmp_path / "run.zarr", [python(), str(RUNNER_PROGRAM), "stale-slots"])
    assert ran.status == 0, ran.err
    (process,) = check_stores([Store.open(tmp_path / "run.zarr")]).processes
    (found,) = [one for chain in process.chains for one in chain.findings]
    assert (found.kind, found.found.slot, found.found.position) == (Break.OLDER_VERSION, 4, 5)
    assert process.table.requests[found.found.request] == "b"
