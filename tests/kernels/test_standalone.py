# SPDX-License-Identifier: Apache-2.0
"""The references that stand-alone reproductions carry are the oracles, in torch alone."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.ops import operation, operations
from gdnbench.synth import synthesise
from gdnbench_kernels.contract import Call
from gdnbench_kernels.run import run_kernel

GDN = {"heads": (2, 4), "head_dim": (8, 6)}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("gdn_prefill", {"seqlens": (3, 0, 70), **GDN}),
    ("gdn_prefill", {"seqlens": (3, 5), "initial_state": True, "gate": "linear", "scale": None, **GDN}),
    ("gdn_prefill", {"seqlens": (9,), "initial_state": True, "state_layout": "KV", "qk": "raw", **GDN}),
    ("gdn_prefill", {"seqlens": (9, 4), "nan_at": (2,), **GDN}),
    ("gdn_decode", {"batch": 4, "steps": 3, "padding": 0.5, "holes": 0.3, **GDN}),
    ("gdn_decode", {"batch": 3, "steps": 4, "speculative": True, "gate": "linear", **GDN}),
    ("gdn_decode", {"batch": 3, "steps": 2, "read_indices": "shared", "gate": "raw", "qk": "raw", **GDN}),
    ("gdn_decode", {"batch": 3, "read_indices": "own", "state_layout": "KV", "beta": (0.0, 2.0), **GDN}),
    ("kda_prefill", {"seqlens": (3, 0, 20), "closed_gates": 0.1, **GDN}),
    ("kda_prefill", {"seqlens": (3, 5), "initial_state": True, "gate": "raw", "beta_form": "logit", **GDN}),
    ("kda_prefill", {"seqlens": (9,), "gate": "bounded", "state_layout": "KV", "qk": "raw", **GDN}),
    ("kda_prefill", {"seqlens": (9, 4), "initial_state": True, "nan_at": (2,), "scale": 2.0, **GDN}),
    ("kda_decode", {"batch": 4, "steps": 3, "padding": 0.5, "holes": 0.3, **GDN}),
    ("kda_decode", {"batch": 3, "steps": 4, "speculative": True, "gate": "raw", "beta_form": "logit", **GDN}),
    ("kda_decode", {"batch": 3, "read_indices": "own", "gate": "bounded", "state_layout": "KV", **GDN}),
    ("conv_prefill", {"seqlens": (3, 0, 9), "channels": 5, "bias": True, "padding": 0.4}),
    ("conv_prefill", {"seqlens": (3, 9), "channels": 5, "pool": False, "activation": "none", "nan_at": (4,)}),
    (
        "conv_decode",
        {"batch": 5, "channels": 5, "padding": 0.4, "steps": 3, "windows": "rolling", "ragged": True},
    ),
    ("conv_decode", {"batch": 3, "channels": 5, "steps": 3, "windows": "each", "speculative": True}),
    ("conv_decode", {"batch": 3, "channels": 5, "steps": 2, "read_indices": True}),
    ("swa_decode", {"lens": (9, 0, 5), "heads": 3, "holes": 0.3, "sink": 1.0}),
    ("swa_decode", {"lens": (9, 128), "heads": 3, "cache_layout": "fp8_ds_mla", "scale_range": 1e3}),
    ("swa_decode", {"lens": (9, 1), "heads": 3, "cache_layout": "bfloat16", "index_shape": "1TW"}),
    ("swa_decode", {"lens": (9, 3), "heads": 1, "scale": 0.5, "nan_at": (1,), "nan_scale_at": (0,)}),
    (
        "v4_decode",
        {"lens": (9, 0, 5), "extra_lens": (7, 3, 0), "topk": 8, "heads": 3, "holes": 0.3, "sink": 1.0},
    ),
    (
        "v4_decode",
        {
            "lens": (9, 128),
            "extra_lens": (70, 1),
            "queries": 2,
            "heads": 2,
            "cache_layout": "fp8_ds_mla",
            "extra_layout": "bfloat16",
            "extra_index_form": "block_table",
            "extra_block_size": 2,
            "lens_shape": "B",
            "index_shape": "T1W",
            "packed": True,
        },
    ),
    (
        "v4_decode",
        {
            "lens": (9, 0),
            "extra_lens": (),
            "heads": 2,
            "index_shape": "TW",
            "lens_shape": "T",
            "lse_base": "2",
            "lse_sink": "with",
            "lse_empty": "plus_inf",
            "nan_at": (0,),
        },
    ),
    ("indexer_topk", {"lens": (9, 0, 3), "top_k": 4, "starts": True, "zeros": 0.5, "nan_at": (0,)}),
    ("indexer_logits", {"lens": (9, 2), "queries": 2, "heads": 3, "head_dim": 32, "block_size": 4}),
    ("indexer_logits", {"lens": (5, 2), "heads": 3, "head_dim": 32, "packed": True, "dtype": "bfloat16"}),
    ("v4_compress", {"features": 16, "rope_dim": 8}),
    ("v4_compress", {"features": 8, "rope_dim": 0, "norm": False, "ratio": 6, "overlap": False}),
]


def standalone(op: str, call: Call) -> dict[str, Tensor]:
    reference = importlib.import_module(f"gdnbench_kernels.{op}.standalone").reference
    found: dict[str, Tensor] = reference(**call.tensors, **call.scalars, **call.conventions)
    return found


@pytest.mark.parametrize(("op", "options"), CASES, ids=[f"{op}-{i}" for i, (op, _) in enumerate(CASES)])
def test_it_agrees_with_the_oracle(op: str, options: dict[str, Any]) -> None:
    if options.get("scale", 0) is None:
        options = {name: value for name, value in options.items() if name != "scale"}
    call = synthesise(op, **options)
    given = {name: tensor.clone() for name, tensor in call.tensors.items()}
    found, exact = standalone(op, call), run_kernel(operation(op), "reference", call)
    assert found.keys() == exact.keys()
    for name, tensor in exact.items():
        assert found[name].dtype == torch.float64
        # Two orders of summation in fp64, of sums of at most 512 terms: a few ulps of the largest.
        torch.testing.assert_close(found[name], tensor, rtol=1e-11, atol=1e-12, equal_nan=True)
    for name, tensor in given.items():
        assert torch.equal(call.tensors[name].view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.mark.parametrize("op", sorted(operations()))
def test_it_needs_torch_alone(op: str) -> None:
    file = importlib.import_module(f"gdnbench_kernels.{op}.standalone").__file__
    assert file is not None
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= {"__future__", "typing", "torch"}
