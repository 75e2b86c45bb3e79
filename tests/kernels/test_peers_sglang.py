# SPDX-License-Identifier: Apache-2.0
"""SGLang as a kernel of both operations: functions of its documented arguments stand in for its package, in
the modules of two releases. tests/replay/test_sglang_simulated.py runs the package itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench_kernels import peers, sglang_stand_in
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.gdn_decode import sglang as decode
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.gdn_decode.contract import slots_of
from gdnbench_kernels.gdn_prefill import sglang as prefill
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel
from tests.messages import wording
from tests.seeds import drawn

D = 16
NEW = {
    "kernels/ops/attention/fla/chunk": "chunk_gated_delta_rule",
    "kernels/ops/attention/fla/fused_recurrent": "fused_recurrent_gated_delta_rule_packed_decode,"
    " fused_recurrent_gated_delta_rule_update",
    "kernels/ops/attention/linear/fused_sigmoid_gating_recurrent": "fused_sigmoid_gating_delta_rule_update",
    "kernels/ops/attention/linear/gdn_blackwell": "chunk_gated_delta_rule_cutedsl, prepare_metadata_cutedsl",
    "kernels/ops/attention/cutedsl_gdn": "cutedsl_fused_sigmoid_gating_delta_rule_update",
}
SIGMOID = "kernels/ops/attention/linear/fused_sigmoid_gating_recurrent"
BLACKWELL = "kernels/ops/attention/linear/gdn_blackwell"
OLD = {
    **{module: names for module, names in NEW.items() if module != SIGMOID},
    SIGMOID.replace("linear", "fla"): NEW[SIGMOID],
    BLACKWELL: "prepare_metadata_cutedsl,"
    " chunk_gated_delta_rule_without_pool as chunk_gated_delta_rule_cutedsl",
}
"""Modules, and the functions that they have: in 0.5.23, and in earlier releases."""


def install(modules: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`import sglang` finds the functions of `sglang_functions` in these modules. The packages' own
    `__init__` fail, as SGLang's does without a GPU."""
    for module, names in modules.items():
        file = folder / "sglang" / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"from tests.kernels.sglang_functions import {names}\n")
        for package in (one for one in file.parents if one.is_relative_to(folder / "sglang")):
            (package / "__init__.py").write_text("raise RuntimeError('no GPU')\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sglang_stand_in, "STAND_INS", replace(sglang_stand_in.STAND_INS))


@pytest.fixture(params=["new", "old"])
def stand_in(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    install(NEW if request.param == "new" else OLD, tmp_path, monkeypatch)
    return str(request.param)


RAW = {"gate": "raw", "qk": "raw"}
CASES: dict[str, tuple[str, Operation, dict[str, Any]]] = {
    "prefill": ("sglang", PREFILL, {"seqlens": (20, 0, 17, 70), "initial_state": True, "qk": "raw"}),
    "prefill, no states, int64": ("sglang", PREFILL, {"seqlens": (5, 3), "offsets_dtype": "int64"}),
    "prefill, bf16 states": (
        "sglang",
        PREFILL,
        {"seqlens": (9,), "initial_state": True, "state_dtype": "bfloat16", "final_state_dtype": "float32"},
    ),
    "prefill, CuTe DSL": (
        "sglang_cutedsl",
        PREFILL,
        {"seqlens": (20, 70), "initial_state": True, "heads": (1, 4), "head_dim": (128, 128)},
    ),
    "decode, packed": ("sglang", DECODE, {"batch": 4, "padding": 0.3, "slot_gap": 24, **RAW}),
    "decode, drafts": ("sglang", DECODE, {"batch": 3, "steps": 3, "speculative": True, "holes": 0.2, **RAW}),
    "decode, other slots": ("sglang", DECODE, {"batch": 3, "read_indices": "shared", **RAW}),
    "decode, log gates": ("sglang", DECODE, {"batch": 3, "padding": 0.4}),
    "decode, log gates, slots with gaps": ("sglang", DECODE, {"batch": 3, "slot_gap": 8, "slots": 7}),
    "decode, log gates, drafts": ("sglang", DECODE, {"batch": 2, "steps": 2, "state_dtype": "bfloat16"}),
    "decode, CuTe DSL": (
        "sglang_cutedsl",
        DECODE,
        {"batch": 3, "padding": 0.4, "head_dim": (128, 128), "dt_bias_dtype": "bfloat16", **RAW},
    ),
}
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-22}
"""One rounding of a result; with fp32, four times that for normalised q and k in fp32."""


def made(name: str) -> tuple[str, Operation, Call]:
    kernel, operation, options = CASES[name]
    sizes = {"heads": (1, 2), "head_dim": (D, D), "seed": drawn("sglang", 31)}
    call = operation.synth(**{**sizes, **options})
    operation.validate(call)
    return kernel, operation, call


def assert_near(operation: Operation, call: Call, found: dict[str, Tensor]) -> None:
    exact = run_kernel(operation, "reference", call)
    assert set(found) == set(exact)
    for name, tensor in exact.items():
        promised = ~tensor.isnan()
        x, y = found[name].double()[promised], tensor[promised]
        assert (x - y).norm() <= ROUNDOFF[found[name].dtype] * y.norm(), name
    if "state" in found:
        untouched = torch.ones(len(found["state"]), dtype=torch.bool)
        untouched[slots_of(call).written] = False
        assert torch.equal(found["state"][untouched], call.tensors["state"][untouched])


@pytest.mark.parametrize("name", CASES)
def test_what_the_functions_are_given(name: str, stand_in: str) -> None:
    kernel, operation, call = made(name)
    assert_near(operation, call, run_kernel(operation, kernel, call))


def test_launches_begin_with_the_initial_states(stand_in: str) -> None:
    """SGLang's functions write the final states over the initial ones."""
    _, _, call = made("prefill")
    launch = prefill.prepare(**call.tensors, qk="raw")
    before = call.tensors["initial_state"].clone()
    for _ in range(2):
        assert_near(PREFILL, call, dict(launch()))  # type: ignore[call-overload]
    assert torch.equal(call.tensors["initial_state"], before)


def test_refusals(stand_in: str) -> None:
    call = PREFILL.synth(seqlens=(0,), heads=(1, 4))
    for function, peer in ((prefill.sglang, prefill.TRITON), (prefill.sglang_cutedsl, prefill.CUTE_DSL)):
        with pytest.raises(NotImplementedError, match=wording("kernels.nothing-launched", kernel=peer)):
            function(**call.tensors)
        with pytest.raises(
            NotImplementedError, match=wording("kernels.peer-chunk", peer=peer, size=64, given=128)
        ):
            function(**call.tensors, chunk_size=128)
    call = PREFILL.synth(seqlens=(3,), heads=(1, 2))
    with pytest.raises(
        NotImplementedError, match=wording("kernels.peer-heads", peer=prefill.CUTE_DSL, heads=4, given=2)
    ):
        prefill.sglang_cutedsl(**call.tensors)
    call = DECODE.synth(batch=1, heads=(1, 2), gate="raw", beta=(0.0, 2.0))
    with pytest.raises(NotImplementedError, match=wording("kernels.peer-beta", peer=decode.TRITON)):
        decode.sglang(**call.tensors, gate="raw", beta_max=2.0)
    given = {"gate": "raw", "qk": "raw", "dt_bias_dtype": "bfloat16"}
    call = DECODE.synth(batch=1, steps=2, heads=(1, 2), **given)
    with pytest.raises(
        NotImplementedError, match=wording("kernels.peer-one-token", peer=decode.CUTE_DSL, tokens=2)
    ):
        decode.sglang_cutedsl(**call.tensors, **RAW)
    call = DECODE.synth(batch=1, scale=0.5, heads=(1, 2), **given)
    with pytest.raises(NotImplementedError, match=wording("kernels.peer-scale", wanted="0.08839", given=0.5)):
        decode.sglang_cutedsl(**call.tensors, **RAW, scale=0.5)
    call = DECODE.synth(batch=2, read_indices="own", heads=(1, 2), **given)
    with pytest.raises(NotImplementedError, match=wording("kernels.peer-slot", peer=decode.CUTE_DSL)):
        decode.sglang_cutedsl(**call.tensors, **RAW)


def test_a_release_without_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install({"kernels/ops/attention/fla/chunk": "chunk_gated_delta_rule"}, tmp_path, monkeypatch)
    with pytest.raises(
        NotImplementedError, match=wording("kernels.sglang-function", function="launch", modules="one or two")
    ):
        peers.sglang_function("launch", "one", "two")


def test_a_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install({"kernels/ops/attention/fla/chunk": "chunk_gated_delta_rule"}, tmp_path, monkeypatch)
    file = tmp_path / "sglang" / "kernels/ops/attention/fla/chunk.py"
    file.write_text("import a_package_of_its_kernels\n")
    how = f"with --kernel-env FOLDER, {peers.PIP_TARGET} {peers.SGLANG_PACKAGES}"
    why = "No module named 'a_package_of_its_kernels'"
    with pytest.raises(
        ImportError, match=wording("kernels.package-broken", distribution="sglang", error=why, how=how)
    ):
        peers.sglang_function("chunk_gated_delta_rule", prefill.CHUNKED)
