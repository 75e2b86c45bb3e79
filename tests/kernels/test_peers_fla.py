# SPDX-License-Identifier: Apache-2.0
"""flash-linear-attention as a kernel of both operations: a function of its documented arguments stands in for
it, and the package itself runs in Triton's interpreter where both are installed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench_kernels import peers
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.gdn_decode import fla as decode
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.gdn_decode.contract import slots_of
from gdnbench_kernels.gdn_prefill import fla as prefill
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel
from tests.kernels.fla_recurrence import recurrence, unit
from tests.messages import wording
from tests.seeds import drawn

HERE = Path(__file__).parent
D = 16


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor | None]:
    """What 0.6.0 documents of both functions, as far as it is asked for here; states are fp32."""
    assert all(x.is_contiguous() for x in (q, k, v, g, beta))
    if use_gate_in_kernel:
        assert A_log is not None
        assert dt_bias is not None
        g = -A_log.double().exp() * torch.nn.functional.softplus(g.double() + dt_bias.double())
    if use_beta_sigmoid_in_kernel:
        beta = beta.double().sigmoid() * (2 if allow_neg_eigval else 1)
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    if cu_seqlens is None:
        rows = [(n, slice(None)) for n in range(len(q))]
    else:
        assert len(q) == 1
        assert chunk_indices is not None
        bounds = cu_seqlens.tolist()
        rows = [(0, slice(*pair)) for pair in pairwise(bounds)]
        counts = [(end - start + chunk_size - 1) // chunk_size for start, end in pairwise(bounds)]
        assert chunk_indices.tolist() == [[n, i] for n, count in enumerate(counts) for i in range(count)]
    states = torch.zeros(len(rows), v.shape[2], k.shape[3], v.shape[3])
    if initial_state is not None:
        assert initial_state.shape == states.shape
        assert initial_state.is_contiguous()
        states = initial_state.float()
    out, final = torch.empty_like(v), torch.empty_like(states)
    for n, (batch, part) in enumerate(rows):
        of = [x[batch, part] for x in (q, k, v, g, beta)]
        o, state = recurrence(*of, states[n], scale)
        out[batch, part], final[n] = o.to(v.dtype), state.float()
    return out, final if output_final_state else None


def prepare_chunk_indices(cu_seqlens: Tensor, chunk_size: int) -> Tensor:
    counts = (cu_seqlens.diff() + chunk_size - 1) // chunk_size
    found = [(n, i) for n, count in enumerate(counts.tolist()) for i in range(count)]
    return torch.tensor(found, dtype=cu_seqlens.dtype).reshape(-1, 2)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import fla` finds the function above."""
    functions = dict.fromkeys(
        ("fused_recurrent_gated_delta_rule", "chunk_gated_delta_rule"), fused_recurrent_gated_delta_rule
    )
    members: dict[str, dict[str, Any]] = {
        "fla": {"__version__": "0.6.0"},
        "fla.ops": {},
        "fla.backends": {"_DISPATCH_DISABLED": True},
        "fla.ops.gated_delta_rule": functions,
        "fla.ops.utils": {"prepare_chunk_indices": prepare_chunk_indices},
    }
    for name, there in members.items():
        module = ModuleType(name)
        module.__path__ = []
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        vars(module).update(there)
        monkeypatch.setitem(sys.modules, name, module)
    for variable in peers.NO_DISPATCH:
        monkeypatch.delenv(variable, raising=False)
    prefill._chunks_of.cache_clear()


CASES: dict[str, tuple[Operation, dict[str, Any]]] = {
    "decode": (DECODE, {"batch": 3, "padding": 0.4, "qk": "raw", "state_layout": "KV"}),
    "decode, raw gates, beta to 2": (
        DECODE,
        {"batch": 2, "gate": "raw", "beta": (0.0, 2.0), "read_indices": "shared", "state_layout": "KV"},
    ),
    "decode, bf16 states": (DECODE, {"batch": 2, "state_dtype": "bfloat16", "state_layout": "KV"}),
    # In fp16: the interpreter multiplies matrices of bf16 as if their bits were integers.
    "prefill": (
        PREFILL,
        {
            "dtype": "float16",
            "seqlens": (20, 17, 70),
            "initial_state": True,
            "qk": "raw",
            "state_layout": "KV",
        },
    ),
    "prefill, bf16 states, int64": (
        PREFILL,
        {
            "dtype": "float16",
            "seqlens": (5, 3),
            "initial_state": True,
            "state_dtype": "bfloat16",
            "offsets_dtype": "int64",
            "state_layout": "KV",
        },
    ),
}
# One rounding of a result, twice its worst, and for fp32 2^8 for the sums of 16 terms and the exponentials
# before it. In the chunked form eleven on the way, of independent sign, to the dtype of the inputs.
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-16}


def made(name: str) -> tuple[Operation, Call]:
    operation, options = CASES[name]
    call = operation.synth(heads=(1, 2), head_dim=(D, D), **{"seed": drawn("fla", 31), **options})
    operation.validate(call)
    return operation, call


def assert_near(
    operation: Operation, call: Call, found: dict[str, Tensor], roundings: int, why: object
) -> None:
    exact = run_kernel(operation, "reference", call)
    inputs = ROUNDOFF[call.tensors["v"].dtype] if roundings > 1 else 0.0
    assert set(found) == set(exact)
    for name, tensor in exact.items():
        promised = ~tensor.isnan()
        x, y = found[name].double()[promised], tensor[promised]
        assert (x - y).norm() <= roundings**0.5 * max(inputs, ROUNDOFF[found[name].dtype]) * y.norm(), (
            name,
            why,
        )
    if "state" in found:
        untouched = torch.ones(len(found["state"]), dtype=torch.bool)
        untouched[slots_of(call).written] = False
        assert torch.equal(found["state"][untouched], call.tensors["state"][untouched])


@pytest.mark.parametrize("name", CASES)
def test_what_the_function_is_given(name: str, stand_in: None) -> None:
    operation, call = made(name)
    assert_near(operation, call, run_kernel(operation, "fla", call), 1, call.scalars)
    assert {variable: os.environ[variable] for variable in peers.NO_DISPATCH} == peers.NO_DISPATCH


def test_a_launch_keeps_its_results_to_itself(stand_in: None) -> None:
    """Two launches of a round never write to the same memory, and the pool is written when asked for."""
    _, call = made("decode")
    given = [{name: x.clone() for name, x in call.tensors.items()} for _ in range(2)]
    launches = [decode.prepare(**tensors, qk="raw") for tensors in given]
    left = [launch() for launch in launches]
    assert len({launch.result[1].data_ptr() for launch in launches}) == 2  # type: ignore[attr-defined]
    for tensors, results in zip(given, left, strict=True):
        assert torch.equal(tensors["state"], call.tensors["state"])
        found = {**dict(results), "state": tensors["state"]}  # type: ignore[call-overload]
        assert_near(DECODE, call, found, 1, "")


def test_chunks_are_counted_once_for_equal_calls(stand_in: None) -> None:
    """flash-linear-attention knows what it counted by the identity of cu_seqlens, and counts on the host."""
    operation, call = made("prefill")
    first, second = (
        prefill.prepare(**{name: x.clone() for name, x in call.tensors.items()}) for _ in range(2)
    )
    for name in ("cu_seqlens", "chunk_indices"):
        given = [launch._call.keywords[name] for launch in (first, second)]  # type: ignore[attr-defined]
        assert given[0] is given[1]
    assert operation.outputs(call).keys() == dict(first()).keys()  # type: ignore[call-overload]


def test_refusals(stand_in: None) -> None:
    call = DECODE.synth(batch=2, steps=2, heads=(1, 2), head_dim=(D, D), state_layout="KV")
    with pytest.raises(NotImplementedError, match=wording("kernels.fla-states", tokens=2)):
        decode.fla(**call.tensors)
    call = DECODE.synth(batch=2, padding=1.0, heads=(1, 2), head_dim=(D, D), state_layout="KV")
    with pytest.raises(NotImplementedError, match=wording("kernels.fla-padding")):
        decode.fla(**call.tensors)
    call = PREFILL.synth(seqlens=(0,), heads=(1, 2), head_dim=(D, D), state_layout="KV")
    with pytest.raises(NotImplementedError, match=wording("kernels.nothing-launched")):
        prefill.fla(**call.tensors)
    with pytest.raises(
        NotImplementedError, match=wording("kernels.fla-chunk", known="16, 32, 64", given=128)
    ):
        prefill.fla(**call.tensors, chunk_size=128)


def test_dispatch_that_is_on_already(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its switch is read once: a process that imported the package without it measures something else."""
    monkeypatch.setattr(sys.modules["fla.backends"], "_DISPATCH_DISABLED", False)
    with pytest.raises(
        ImportError,
        match=wording("kernels.fla-dispatch", settings=re.compile(".*FLA_DISABLE_BACKEND_DISPATCH=1")),
    ):
        peers.fla_module("ops.gated_delta_rule")


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla", None)
    how = re.compile(r"pip install 'gdnbench\[peers\]', or .* --target FOLDER flash-linear-attention==.*")
    with pytest.raises(
        ImportError, match=wording("kernels.package-missing", distribution="flash-linear-attention", how=how)
    ):
        peers.fla_module("ops.gated_delta_rule")


def test_the_package_itself_in_tritons_interpreter(tmp_path: Path) -> None:
    for package in ("fla", "triton"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'gdnbench[peers]'")
    calls = [made(name) for name in CASES]
    torch.save(
        [
            (operation.name, dict(call.tensors), dict(call.scalars), dict(call.conventions))
            for operation, call in calls
        ],
        tmp_path / "given.pt",
    )
    ran = subprocess.run(
        [sys.executable, "fla_interpreted.py", tmp_path / "given.pt", tmp_path / "left.pt"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    left = torch.load(tmp_path / "left.pt")
    for name, (operation, call), found in zip(CASES, calls, left, strict=True):
        assert_near(operation, call, found, 11 if operation is PREFILL else 1, name)
