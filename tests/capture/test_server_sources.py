# SPDX-License-Identifier: Apache-2.0
"""What capture knows of serving packages, held to the sources of their wheels, which are not imported.

Tests do not install the packages: each variable below names a folder that has one, as `pip install --no-deps
--target FOLDER` leaves it.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from gdnbench.capture.adapters import (
    deep_gemm,
    fla_signatures,
    flash_mla,
    sglang_compressor,
    sglang_indexer,
    sglang_signatures,
    vllm_compressor,
    vllm_indexer,
    vllm_signatures,
)
from gdnbench.capture.adapters.flashinfer_signatures import (
    HCA,
    KDA_SIGNATURES,
    PACKED_KDA,
    RECURRENT_KDA,
    SPARSE_MLA,
    SPARSE_MLA_SIGNATURES,
)
from gdnbench.capture.adapters.flashinfer_sparse_mla import LAYERS
from gdnbench.capture.adapters.uncaptured import UNCAPTURED, UncapturedFunctions
from tests.capture import test_sglang_itself, test_vllm_itself
from tests.capture.frameworks import FOLDER
from tests.capture.source_signatures import parameters

PACKAGES = {
    "vllm": ("GDNBENCH_VLLM", "vllm 0.33.0"),
    "sglang": ("GDNBENCH_SGLANG", "sglang 0.5.23"),
    "flashinfer": ("GDNBENCH_THIRD_PARTY", "flashinfer-python 0.7.2.post1"),
    "fla": ("GDNBENCH_FLA", "fla-core 0.6.0"),
    "flash_mla": ("GDNBENCH_FLASH_MLA", "sgl-flash-mla 1.0.0"),
    "deep_gemm": ("GDNBENCH_DEEP_GEMM", "sgl-deep-gemm 0.2.5"),
    "deep_gemm_sglang": ("GDNBENCH_DEEP_GEMM_SGLANG", "sgl-deep-gemm 0.2.3.post2"),
}
INDEXER_TOPK, SGLANG_INDEXER = (
    "model_executor/layers/indexer_topk.py",
    "srt/layers/attention/dsv4/indexer.py",
)
INDEXERS = [
    ("deep_gemm_sglang", "__init__.py", deep_gemm, (deep_gemm.PAGED, deep_gemm.PACKED)),
    ("deep_gemm", "__init__.py", deep_gemm, (deep_gemm.PAGED_FP4, deep_gemm.PACKED_FP4)),
    ("sglang", SGLANG_INDEXER, deep_gemm, (deep_gemm.TORCH, deep_gemm.TORCH_SM120)),
    ("sglang", "kernels/ops/attention/dsa/tilelang_kernel.py", deep_gemm, (deep_gemm.TILELANG,)),
    ("vllm", INDEXER_TOPK, vllm_indexer, (vllm_indexer.FORWARD,)),
    ("vllm", "models/deepseek_v4/compressor.py", vllm_compressor, (vllm_compressor.FORWARD,)),
    (
        "sglang",
        "kernels/ops/attention/dsv4/compress.py",
        sglang_compressor,
        (sglang_compressor.FUNCTION,),
    ),
    ("vllm", "_custom_ops.py", vllm_indexer, (vllm_indexer.DECODE, vllm_indexer.PREFILL)),
    (
        "sglang",
        "kernels/ops/attention/dsv4/topk.py",
        sglang_indexer,
        (sglang_indexer.PAGED, sglang_indexer.PAGED_V2),
    ),
    (
        "sglang",
        SGLANG_INDEXER,
        sglang_indexer,
        (sglang_indexer.TORCH, *sglang_indexer.FLASHINFER, sglang_indexer.BFLOAT16),
    ),
]
"""Functions of indexers and compressors by package and file, and the adapter that knows them."""
SPARSE_MLA_FILE = "mla/_core.py"
HCA_FILE = "cute_dsl/attention/wrappers/batch_hca.py"
K3_OPS, GLM_OPS = "models/kimi_k3/nvidia/ops/third_party/kda", "models/glm5next/nvidia/ops/third_party/kda"
SGLANG_KERNELS, SGLANG_FLA = "srt/layers/attention/linear/kernels", "kernels/ops/attention/fla"
KDA_FILES = {
    ("vllm", "kimi_k3."): {
        f"{K3_OPS}/chunk.py": ("chunk_kda", "chunk_kda_with_fused_gate"),
        f"{K3_OPS}/fused_recurrent.py": ("fused_recurrent_kda", "fused_recurrent_kda_packed_decode"),
        "models/kimi_k3/nvidia/ops/recoverssm.py": ("kda_recoverssm_verify",),
        "models/kimi_k3/nvidia/kda.py": ("_flashkda_prefill", "_flashinfer_kda_prefill"),
    },
    ("vllm", "glm5next."): {
        f"{GLM_OPS}/kernels.py": ("chunk_kda_with_fused_gate", "fused_recurrent_kda"),
        "models/glm5next/common/kda.py": ("Glm5NextLinearAttention._flashkda_prefill",),
    },
    ("vllm", "fla."): {
        "third_party/flash_linear_attention/ops/kda.py": (
            "chunk_kda",
            "chunk_kda_with_fused_gate",
            "fused_recurrent_kda",
            "fused_recurrent_kda_fwd",
        )
    },
    ("sglang", ""): {
        **{
            f"{SGLANG_KERNELS}/kda_{file}.py": tuple(
                name for name in sglang_signatures.KDA_SIGNATURES.functions if name.startswith(f"{kernels}.")
            )
            for file, kernels in (
                ("triton", "TritonKDAKernel"),
                ("flashinfer", "FlashInferKDAKernel"),
                ("flashinfer_prefill", "FlashInferKDAPrefillKernel"),
                ("cutedsl", "CuteDSLKDAKernel"),
                ("flashkda", "FlashKDAKernel"),
                ("helion", "HelionKDAKernel"),
                ("nvidia", "NvidiaKDAKernel"),
                ("ptx", "PtxKDAKernel"),
            )
        },
        f"{SGLANG_FLA}/kda.py": ("chunk_kda",),
        f"{SGLANG_FLA}/fused_recurrent.py": ("fused_recurrent_kda_packed_decode",),
        "kernels/ops/attention/cutedsl_kda.py": ("cutedsl_fused_sigmoid_gating_kda_update",),
    },
    ("flashinfer", ""): {"kda.py": (RECURRENT_KDA,), "kda_decode.py": (PACKED_KDA,)},
    ("fla", ""): {
        "ops/kda/chunk.py": (fla_signatures.KDA_CHUNK,),
        "ops/kda/fused_recurrent.py": (fla_signatures.KDA_RECURRENT,),
    },
}
"""Functions of Kimi Delta Attention by package, prefix of their names in the tables, and file."""
KDA_TABLES = {
    "vllm": vllm_signatures.KDA_SIGNATURES,
    "sglang": sglang_signatures.KDA_SIGNATURES,
    "flashinfer": KDA_SIGNATURES,
    "fla": fla_signatures.SIGNATURES,
}
KDA = [
    (package, file, name, KDA_TABLES[package].functions[f"{prefix}{name}"])
    for (package, prefix), files in KDA_FILES.items()
    for file, names in files.items()
    for name in names
]
SIGNATURES = [
    *(("vllm", file, name, test_vllm_itself.known_of(name)) for name, file in test_vllm_itself.FILES.items()),
    *(
        ("sglang", file, name, sglang_signatures.SIGNATURES.functions[name].parameters)
        for name, file in test_sglang_itself.FILES.items()
    ),
    *((package, file, name, known.parameters) for package, file, name, known in KDA),
    *(
        (package, file, name, adapter.SIGNATURES.functions[name].parameters)
        for package, file, adapter, names in INDEXERS
        for name in names
    ),
    (
        "vllm",
        "third_party/flashmla/flash_mla_interface.py",
        vllm_signatures.FLASH_MLA,
        vllm_signatures.SIGNATURES.functions[vllm_signatures.FLASH_MLA].parameters,
    ),
    (
        "flash_mla",
        "flash_mla_interface.py",
        flash_mla.FUNCTION,
        flash_mla.SIGNATURES.functions[flash_mla.FUNCTION].parameters,
    ),
    *(
        ("flashinfer", file, name, SPARSE_MLA_SIGNATURES.functions[name].parameters)
        for file, name in ((SPARSE_MLA_FILE, SPARSE_MLA), (HCA_FILE, HCA))
    ),
]
CALLERS = {
    "vllm": (
        "models/deepseek_v4/nvidia/flashinfer_sparse.py",
        "models/deepseek_v41/nvidia/flashinfer_sparse.py",
        "models/deepseek_v41/nvidia/specialized_decode/attention/sparse_mla.py",
    ),
    "sglang": ("srt/layers/attention/deepseek_v4_trtllm_backend.py",),
}
"""Files that call FlashInfer's sparse attention of DeepSeek-V4."""


def source(package: str) -> Path:
    variable, release = PACKAGES[package]
    folder = Path(os.environ.get(variable, os.devnull)) / package.removesuffix("_sglang")
    if not folder.is_dir():
        pytest.skip(f"{variable} names no folder that has {release}")
    return folder


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.slow  # of packages that tests do not install
@pytest.mark.parametrize(
    ("package", "file", "name", "known"),
    SIGNATURES,
    ids=[f"{one[0]}-{one[1]}-{one[2]}" for one in SIGNATURES],
)
def test_signatures(package: str, file: str, name: str, known: str) -> None:
    """Where a release that changed a signature fails this, read the adapter against it, then bring up the
    table and its date."""
    assert parameters(source(package) / file, name) == known


@pytest.mark.slow  # of packages that tests do not install
@pytest.mark.parametrize("name", [deep_gemm.PAGED_FP4, deep_gemm.PACKED_FP4])
def test_what_vllm_calls_the_parameters_of_deep_gemm(name: str) -> None:
    given = {
        one.partition("=")[0] for one in parameters(source("vllm") / "utils/deep_gemm.py", name).split(", ")
    }
    assert given <= deep_gemm.SIGNATURES.functions[name].names


@pytest.mark.slow  # of packages that tests do not install
def test_the_layer_of_the_indexer() -> None:
    layer, method = deep_gemm.INDEXER.function.split(".")
    path = source("vllm").parent / f"{deep_gemm.INDEXER.module.replace('.', '/')}.py"
    assert method in test_vllm_itself.methods_of(path, layer)


def test_every_function_of_kda_is_compared() -> None:
    compared = {
        (package, f"{prefix}{name}")
        for (package, prefix), files in KDA_FILES.items()
        for names in files.values()
        for name in names
    }
    assert compared >= {
        (package, name)
        for package, table in KDA_TABLES.items()
        for name in table.functions
        if "kda" in name.lower()
    }
    for *_, known in KDA:
        assert set(known.needs.split()) <= known.names


@pytest.mark.parametrize(("file", "name"), [(SPARSE_MLA_FILE, SPARSE_MLA), (HCA_FILE, HCA)])
def test_the_stand_in_has_the_signature(file: str, name: str) -> None:
    known = SPARSE_MLA_SIGNATURES.functions[name]
    assert parameters(FOLDER / "flashinfer" / file, name) == known.parameters
    assert set(known.needs.split()) <= known.names


@pytest.mark.slow  # of packages that tests do not install
@pytest.mark.parametrize("package", CALLERS)
def test_the_sparse_attention_is_called_as_it_is_known(package: str) -> None:
    known = SPARSE_MLA_SIGNATURES.functions[SPARSE_MLA]
    for file in CALLERS[package]:
        calls = [
            node
            for node in ast.walk(tree(source(package) / file))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith(SPARSE_MLA)
        ]
        assert calls, file
        for call in calls:
            assert not call.args
            assert {word.arg for word in call.keywords if word.arg is not None} <= known.names


@pytest.mark.slow  # of packages that tests do not install
def test_layers_that_call_it() -> None:
    folder = source("vllm").parent
    for scope in LAYERS:
        layer, method = scope.function.split(".")
        path = folder / f"{scope.module.replace('.', '/')}.py"
        assert method in test_vllm_itself.methods_of(path, layer)


@pytest.mark.slow  # of packages that tests do not install
def test_the_layer_of_mega_attention() -> None:
    """It gives its kernel queries before rope, and a pair of FP8 outputs and scales."""
    path = source("vllm") / "models/deepseek_v41/nvidia/flash_mla_mega_attn.py"
    layer = "DeepseekV4MegaAttnAttention"
    assert {"forward_mqa", "accepts_unnormed_unroped_query"} <= test_vllm_itself.methods_of(path, layer)
    given = [
        [ast.unparse(argument) for argument in node.args]
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("fused_norm_rope_attn_rope_cast_decode")
    ]
    assert len(given) == 1
    assert {"self.rotary_emb.cos_sin_cache", "out.data", "out.scale"} <= set(given[0])


def defined(package: str, folder: Path, entries: list[UncapturedFunctions]) -> Iterator[tuple[str, str]]:
    """(module, qualified name) of the functions in the package's source, of modules that an entry names."""
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        module = ".".join((package, *(part for part in parts if part != "__init__")))
        if any(entry.in_module(module) for entry in entries):
            for node in tree(path).body:
                if isinstance(node, ast.FunctionDef):
                    yield module, node.name
                elif isinstance(node, ast.ClassDef):
                    methods = (inner for inner in node.body if isinstance(inner, ast.FunctionDef))
                    yield from ((module, f"{node.name}.{method.name}") for method in methods)


@pytest.mark.slow  # of packages that tests do not install
@pytest.mark.parametrize("package", sorted({entry.package for entry in UNCAPTURED} & PACKAGES.keys()))
def test_functions_that_are_listed_as_uncaptured(package: str) -> None:
    """Each entry names at least one function of the newest release that was read. One that names none there
    may be deleted."""
    entries = [entry for entry in UNCAPTURED if entry.package == package]
    found = list(defined(package, source(package), entries))
    assert [
        (entry.module, entry.functions)
        for entry in entries
        if not any(
            entry.in_module(module) and any(fnmatchcase(name, one) for one in entry.functions)
            for module, name in found
        )
    ] == []
