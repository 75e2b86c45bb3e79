# SPDX-License-Identifier: Apache-2.0
"""FlashQLA as a kernel of gdn_prefill: a function of its documented arguments stands in for it."""

from __future__ import annotations

import re
import sys
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench_kernels import peers
from gdnbench_kernels.gdn_prefill import flashqla
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.run import run_kernel
from tests.kernels.fla_recurrence import recurrence, unit
from tests.messages import wording
from tests.seeds import drawn

SMALL: dict[str, Any] = {"seqlens": (20, 3), "heads": (1, 2), "state_layout": "KV"}


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The arguments of FlashQLA 0.1.3 that the peer gives: states are [N, HV, K, V], final ones fp32."""
    assert cu_seqlens is not None
    assert len(q) == 1
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    out, final = torch.empty_like(v), torch.zeros(len(cu_seqlens) - 1, v.shape[2], k.shape[3], v.shape[3])
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        state = final[n] if initial_state is None else initial_state[n]
        of = [x[0, start:stop] for x in (q, k, v, g, beta)]
        o, left = recurrence(*of, state, scale)
        out[0, start:stop], final[n] = o.to(v.dtype), left.float()
    return out, final if output_final_state else None


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import flash_qla` finds the function above."""
    module = ModuleType("flash_qla")
    module.__spec__ = ModuleSpec("flash_qla", None)
    vars(module)["chunk_gated_delta_rule"] = chunk_gated_delta_rule
    monkeypatch.setitem(sys.modules, "flash_qla", module)
    flashqla._shared.cache_clear()


@pytest.mark.parametrize(
    "options",
    [
        {"qk": "raw", "initial_state": True},
        {"initial_state": True, "state_dtype": "bfloat16", "offsets_dtype": "int64"},
    ],
)
def test_what_the_function_is_given(options: dict[str, Any], stand_in: None) -> None:
    call = OPERATION.synth(**SMALL, **options, seed=drawn("flashqla", 7))
    OPERATION.validate(call)
    exact, found = run_kernel(OPERATION, "reference", call), run_kernel(OPERATION, "flashqla", call)
    assert set(found) == set(exact)
    for name, tensor in exact.items():
        # One rounding of a result, to its dtype: sums and exponentials before it are in fp64.
        bound = 2.0**-8 if found[name].dtype == torch.bfloat16 else 2.0**-23
        assert (found[name].double() - tensor).norm() <= bound * tensor.norm(), name


def test_equal_calls_share_the_offsets(stand_in: None) -> None:
    """FlashQLA knows its plan by the identity of cu_seqlens, and makes it on the host."""
    call = OPERATION.synth(**SMALL)
    given = [
        flashqla.prepare(**{name: x.clone() for name, x in call.tensors.items()})._call.keywords  # type: ignore[attr-defined]
        for _ in range(2)
    ]
    assert given[0]["cu_seqlens"] is given[1]["cu_seqlens"]
    assert given[0]["q"] is not given[1]["q"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seqlens": (20, 0)}, wording("kernels.flashqla-empty", peer="FlashQLA")),
        ({"head_dim": (64, 128)}, "FlashQLA takes K = V = 128, not K = 64 and V = 128"),
    ],
)
def test_refusals(options: dict[str, Any], message: Any, stand_in: None) -> None:
    call = OPERATION.synth(**{**SMALL, **options})
    with pytest.raises(NotImplementedError, match=message):
        flashqla.flashqla(**call.tensors)


def test_chunks_of_other_sizes(stand_in: None) -> None:
    call = OPERATION.synth(**SMALL)
    with pytest.raises(
        NotImplementedError, match=wording("kernels.peer-chunk", peer="FlashQLA", size=64, given=32)
    ):
        flashqla.flashqla(**call.tensors, chunk_size=32)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_qla", None)
    how = re.compile(r"with --kernel-env FOLDER and nvcc on PATH, pip install .* flash-qla==.* tilelang==.*")
    with pytest.raises(
        ImportError, match=wording("kernels.package-missing", distribution="flash-qla", how=how)
    ):
        peers.flashqla_function("chunk_gated_delta_rule")


def test_a_gpu_that_it_has_no_kernels_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> ModuleType:
        raise ValueError("No CUDA architecture was specified or GPU detected")

    monkeypatch.setattr(peers.importlib, "import_module", refuse)
    with pytest.raises(
        NotImplementedError, match=wording("kernels.flashqla-gpu", error=re.compile("No CUDA.*"))
    ):
        peers.flashqla_function("chunk_gated_delta_rule")
