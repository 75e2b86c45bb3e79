# SPDX-License-Identifier: Apache-2.0
"""Other packages' kernels of Kimi Delta Attention on the simulator: the packages' own functions.

flash-linear-attention and FlashInfer are in the folder GDNBENCH_THIRD_PARTY; GDNBENCH_SGLANG and
GDNBENCH_VLLM name folders of engines, which tests do not install.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gdnbench.synth import draft, synthesise
from gdnbench_kernels.peers import PIP_TARGET, SGLANG_PACKAGES, VLLM_PACKAGES
from tests.replay.conftest import write
from tests.replay.engines import folder, replay
from tests.sim.third_party.apart import FOLDER, TRITON_REQUIREMENTS, WITH_TRITON, need, triton_folder

LAYER = {"gate": "bounded", "beta_form": "logit", "qk": "raw"}
RAW = {**LAYER, "gate": "raw"}
BF16 = {"state_dtype": "bfloat16", "gate_dtype": "bfloat16", "beta_dtype": "bfloat16"}
STATES = {"initial_state": True}
# Sequences that end within chunks of 16, 32 and 64 tokens, one of more than a chunk of 64.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fla decode": ("kda_decode", "fla_pool", {"batch": 2, "steps": 2, "speculative": True, "heads": (1, 2)}),
    "fla prefill": ("kda_prefill", "fla", {"seqlens": (70, 5), "heads": (1, 2), **STATES, **LAYER}),
    "fla prefill, safe": ("kda_prefill", "fla_safe", {"seqlens": (70,), "heads": (1, 1), **STATES, **LAYER}),
    "flashinfer decode": ("kda_decode", "flashinfer", {"batch": 2, "heads": (2, 2), **LAYER, **BF16}),
    "flashinfer decode, K3": (
        "kda_decode",
        "flashinfer_k3",
        {"batch": 2, "padding": 0.5, "heads": (12, 12), **LAYER, **BF16},
    ),
    "flashinfer prefill": (
        "kda_prefill",
        "flashinfer_cutedsl",
        {"seqlens": (40, 24), "heads": (8, 8), **STATES, **LAYER},
    ),
    "flashinfer prefill, small-bh": (
        "kda_prefill",
        "flashinfer",
        {"seqlens": (40, 24), "heads": (4, 4), "state_dtype": "bfloat16", **STATES, **LAYER},
    ),
    "flashinfer prefill, persistent": (
        "kda_prefill",
        "flashinfer_persistent",
        {"seqlens": (40, 24), "heads": (8, 8), **STATES, **LAYER},
    ),
}
ENGINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sglang decode": ("kda_decode", "sglang", {"batch": 3, "padding": 0.3, "heads": (2, 2), **LAYER}),
    "sglang drafts": ("kda_decode", "sglang", {"batch": 2, "steps": 2, "heads": (2, 2), **RAW}),
    "sglang decode, CuTe DSL": (
        "kda_decode",
        "sglang_cutedsl",
        {"batch": 2, "heads": (2, 2), "dt_bias_dtype": "bfloat16", **RAW},
    ),
    "sglang prefill": ("kda_prefill", "sglang", {"seqlens": (70, 5), "heads": (2, 2), **STATES}),
    "vllm decode": ("kda_decode", "vllm", {"batch": 3, "padding": 0.3, "heads": (2, 2), **LAYER}),
    "vllm prefill": ("kda_prefill", "vllm", {"seqlens": (70, 5), "heads": (2, 2), **STATES, **LAYER}),
}


def outcome(
    packages: str, case: tuple[str, str, dict[str, Any]], folder: Path, *words: str
) -> dict[str, Any]:
    operation, kernel, options = case
    write(folder / "made.zarr", [draft(operation, synthesise(operation, **options), index=0)])
    _, (record,) = replay(packages, str(folder / "made.zarr"), "--kernel", kernel, *words)
    return record


@pytest.mark.slow  # test_fla_simulated.py has a call of flash-linear-attention in default runs
@pytest.mark.parametrize("name", CASES)
def test_made_calls_pass(name: str, tmp_path: Path) -> None:
    if name.startswith("fla "):
        need("fla", WITH_TRITON, TRITON_REQUIREMENTS)
        packages = triton_folder() or ""
    else:
        need("flashinfer")
        packages = os.environ.get(FOLDER, "")
    record = outcome(packages, CASES[name], tmp_path)
    assert (record["outcome"], record["reason"]) == ("pass", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_made_calls_of_engines_pass(name: str, tmp_path: Path) -> None:
    record = outcome(engine(name), ENGINES[name], tmp_path)
    assert (record["outcome"], record["reason"]) == ("pass", "")


def engine(name: str) -> str:
    if name.startswith("vllm"):
        return folder("GDNBENCH_VLLM", "vLLM", f"{PIP_TARGET} {VLLM_PACKAGES}")
    return folder("GDNBENCH_SGLANG", "SGLang", f"{PIP_TARGET} {SGLANG_PACKAGES}")


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a checked run of six launches, and their compilation
def test_sglangs_inverse_overwrites_a_beta_that_is_read(tmp_path: Path) -> None:
    """A warp stores `s_beta` of the next chunk while others read that of this one: SGLang issue 37289."""
    case = ("kda_prefill", "sglang_cutedsl", {"seqlens": (70, 33), "heads": (4, 4), **STATES})
    words = ("--machine", "b200", "--sms", "4", "--check", "--keep-going")
    record = outcome(engine("sglang"), case, tmp_path, *words)
    lines = {
        tuple(finding["evidence"][one]["place"]["file_line"] for one in ("first", "second"))
        for finding in record["findings"]
        if (finding["severity"], finding["kind"]) == ("error", "race")
        and Path(finding["file"]).name == "kernel_kkt_inv_uw.py"
        and finding["evidence"]["memory"] == "shared"
    }
    assert (364, 575) in lines


# What the checker finds in FlashInfer 0.7.2.post1: the kind, the file, and the lines of both accesses.
FOUND = {
    "flashinfer prefill": ("operation in flight", "kda_chunked_bt16.py", (3724, 3824)),
    "flashinfer prefill, small-bh": ("no proxy fence", "kda_chunked_bt16_small_bh.py", (1623, 1034)),
    "flashinfer prefill, persistent": ("no proxy fence", "kernel.py", (2114, 2143)),
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", FOUND)
def test_findings_in_flashinfers_prefill(name: str, tmp_path: Path) -> None:
    """The errors of docs/compatibility.md."""
    need("flashinfer")
    kind, file, lines = FOUND[name]
    record = outcome(os.environ.get(FOLDER, ""), CASES[name], tmp_path, "--check")
    found = {
        tuple(finding["evidence"][one]["place"]["file_line"] for one in ("first", "second"))
        for finding in record["findings"]
        if (finding["severity"], finding["kind"], Path(finding["file"]).name) == ("error", kind, file)
    }
    assert lines in found
