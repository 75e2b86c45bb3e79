# SPDX-License-Identifier: Apache-2.0
"""Attention and state functions of the serving packages that no adapter records, and why.

Capture counts their calls and names them at the end, so that a capture which lacks a layer's calls says so.
Modules and functions are globs: a name that a release lacks matches nothing, and one that moved is found
again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property

GDN = ("gdn_prefill", "gdn_decode")
KDA = ("kda_prefill", "kda_decode")
SWA = ("swa_decode", "v4_decode")

QUERIES_BEFORE_ROPE = (
    "takes queries before rope, in an order of its own, and returns FP8 outputs rotated back;"
    " swa_decode has neither"
)
GATHERED_ROWS = "takes rows gathered from their pages; swa_decode has the pages"
LATENT_OF_DEEPSEEK_V3 = "reads latent rows of 576 features, as DeepSeek-V3 has them; swa_decode has 512"
CANDIDATES = "scores the keys of candidate blocks alone; indexer_logits scores all keys of a query"
OTHER_PLATFORM = "a kernel of another platform than CUDA, which no adapter reads"
PAGE_FORMAT_IN_OBJECT = "the format of its pages is in the object and not in the call, which no adapter reads"
RING_OF_INPUTS = (
    "computes its state from a checkpoint and a ring of earlier inputs; the operations have states in a pool"
)
COMMIT_OF_DRAFTS = (
    "moves accepted drafts from a ring of inputs into the states; no operation here does that alone"
)
FUSED_LAYER = (
    "convolves, updates the state and normalises in one kernel: q, k and v of kda_decode are never in memory"
)
FUSED_PREFIX = "convolves and updates the state in one kernel: q, k and v of kda_decode are never in memory"
BELOW_A_RECORDED_ONE = "a kernel below a function that is recorded; calls of other code are not"
OTHER_DELTA_RULE = (
    "another delta rule than the gated one with one gate of a head, which no operation here has"
)
LINEAR_ATTENTION = "linear attention without a delta rule, which no operation here has"
MAMBA_STATE = "the state of a Mamba layer, which no operation here has"
OTHER_CONVOLUTION = "the convolution of a layer whose convolution no adapter reads"
FUSED_CONVOLUTION = (
    "unpacks projections and convolves them in one kernel; conv_decode has the convolution alone"
)


@dataclass(frozen=True)
class UncapturedFunctions:
    """Functions that no adapter records.

    `module`: a glob of the modules that define them, beginning with the package's name. `functions`: globs of
    their names, or `Class.method`. `operations`: with `--op`, they are counted if it names one of these.
    """

    framework: str
    module: str
    functions: tuple[str, ...]
    reason: str
    operations: tuple[str, ...]

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(translate(self.module))

    def in_module(self, name: str) -> bool:
        return self._pattern.match(name) is not None


def _functions_of_framework(
    framework: str, operations: Sequence[str], *rows: tuple[str, str, str]
) -> tuple[UncapturedFunctions, ...]:
    return tuple(
        UncapturedFunctions(framework, module, tuple(functions.split()), reason, tuple(operations))
        for module, functions, reason in rows
    )


UNCAPTURED = (
    *_functions_of_framework(
        "vllm",
        SWA,
        ("vllm.models.deepseek_v4*mega_attn*", "*MegaAttn*.forward_mqa", QUERIES_BEFORE_ROPE),
        ("vllm.*flash_mla_interface", "flash_mla_sparse_fwd", GATHERED_ROWS),
        ("vllm.models.deepseek_v4*.amd.*", "Deepseek*Attention.forward_mqa", OTHER_PLATFORM),
        ("vllm.models.deepseek_v4*.xpu.*", "Deepseek*Attention.forward_mqa", OTHER_PLATFORM),
        ("vllm.models.deepseek_v4*.cpu.*", "Deepseek*Attention.forward_mqa", OTHER_PLATFORM),
    ),
    *_functions_of_framework(
        "vllm",
        GDN,
        ("vllm.model_executor.layers.mamba.gdn.*", "*._forward_core_decode_aiter", OTHER_PLATFORM),
        ("vllm.*.cpu.gdn_attention", "cpu_gdn_attention_core", OTHER_PLATFORM),
        ("vllm.*lightning_attn", "lightning_attention linear_decode_forward_triton", LINEAR_ATTENTION),
        (
            "vllm.model_executor.layers.mamba.ops.*",
            "mamba_chunk_scan_combined_varlen selective_scan_fn selective_state_update"
            " selective_state_update_replayssm*",
            MAMBA_STATE,
        ),
        (
            "vllm.model_executor.layers.mamba.ops.causal_conv1d",
            "causal_conv1d_fn causal_conv1d_update",
            OTHER_CONVOLUTION,
        ),
    ),
    *_functions_of_framework(
        "vllm",
        KDA,
        ("vllm._custom_ops", "fused_kda_decode", FUSED_LAYER),
        ("vllm.models.*.recoverssm.kernels", "CuteRecoverSSMVerify.__call__", FUSED_PREFIX),
        ("vllm.models.*.amd.ops.kda_chunk", "fused_kda_chunk", OTHER_PLATFORM),
    ),
    *_functions_of_framework(
        "sglang",
        SWA,
        ("sglang.*flash_mla_interface", "flash_mla_mega_decode flash_mla_mega_prefill", QUERIES_BEFORE_ROPE),
        ("sglang.*flash_mla_interface", "flash_mla_sparse_fwd", GATHERED_ROWS),
        ("sgl_kernel.flash_mla", "flash_mla_sparse_fwd", GATHERED_ROWS),
        ("sglang.*hip_flash_mla", "flash_mla_with_kvcache_entrypoint", OTHER_PLATFORM),
    ),
    *_functions_of_framework(
        "sglang",
        GDN,
        ("sglang.*gdn_replayssm_spec_decode", "gdn_replayssm_spec_decode", RING_OF_INPUTS),
        ("sglang.*linear_replayssm", "fused_recurrent_linear_replayssm_decode", RING_OF_INPUTS),
        ("sglang.*gdn_replayssm_spec_*", "commit_gdn_replayssm_*", COMMIT_OF_DRAFTS),
        ("sglang.*lightning_attn", "lightning_attention", LINEAR_ATTENTION),
        ("sglang.*seg_la", "seg_la_fwd", LINEAR_ATTENTION),
        ("sglang.*mamba.triton_ops.*", "mamba_chunk_scan_combined selective_state_update", MAMBA_STATE),
        (
            "sglang.*mamba.causal_conv1d*",
            "causal_conv1d_fn causal_conv1d_fwd causal_conv1d_update",
            OTHER_CONVOLUTION,
        ),
        ("sglang.*triton_gdn_fused_proj", "fused_qkvzba_causal_conv1d_update_contiguous", FUSED_CONVOLUTION),
    ),
    *_functions_of_framework(
        "sglang",
        KDA,
        ("sglang.*attention.*", "kda_fused_decode fused_kda_decode_mtp_dspark", FUSED_LAYER),
        ("sglang.*attention.*", "fused_kda_conv_gating_verify", FUSED_PREFIX),
        (
            "sglang.*attention.*",
            "chunk_kda_cutedsl helion_fused_recurrent_kda_* helion_kda_verify kda_packed_decode",
            BELOW_A_RECORDED_ONE,
        ),
        ("sglang.*kda_replayssm_spec_decode", "commit_kda_replayssm_*", COMMIT_OF_DRAFTS),
    ),
    *_functions_of_framework(
        "flash_mla",
        SWA,
        ("flash_mla.flash_mla_interface", "flash_mla_sparse_fwd", GATHERED_ROWS),
    ),
    *_functions_of_framework(
        "deep_gemm",
        ("indexer_logits",),
        ("deep_gemm", "fp8_fp4_sparse_mqa_logits fp8_fp4_paged_sparse_mqa_logits", CANDIDATES),
    ),
    *_functions_of_framework(
        "vllm",
        ("indexer_logits",),
        (
            "vllm.third_party.deep_gemm._C",
            "fp8_fp4_sparse_mqa_logits fp8_fp4_paged_sparse_mqa_logits",
            CANDIDATES,
        ),
    ),
    *_functions_of_framework(
        "flashinfer",
        SWA,
        (
            "flashinfer.mla*",
            "trtllm_batch_decode_with_kv_cache_mla xqa_batch_decode_with_kv_cache_mla"
            " nvfp4_sparse_mla_decode",
            LATENT_OF_DEEPSEEK_V3,
        ),
        ("flashinfer.mla._sparse_mla_sm120*", "*SparseMLA*.run", PAGE_FORMAT_IN_OBJECT),
    ),
    *_functions_of_framework(
        "flashinfer",
        GDN,
        ("flashinfer.gdn_decode", "gated_delta_rule_replayssm_commit", COMMIT_OF_DRAFTS),
        (
            "flashinfer.mamba.*",
            "selective_state_update checkpointing_ssu replayssm_materialize",
            MAMBA_STATE,
        ),
    ),
    *_functions_of_framework(
        "flashinfer",
        KDA,
        ("flashinfer.kda*", "fused_kda_decode packed_fused_kda_decode", FUSED_LAYER),
    ),
    *_functions_of_framework(
        "fla",
        GDN,
        *(
            (
                f"fla.ops.{package}.*",
                f"chunk_{name} fused_chunk_{name} fused_recurrent_{name}",
                OTHER_DELTA_RULE,
            )
            for package, name in (
                ("comba", "comba"),
                ("delta_rule", "delta_rule"),
                ("gated_delta_product", "gated_delta_product"),
                ("gated_oja_rule", "gated_oja_rule"),
                ("gdn2", "gdn2"),
                ("generalized_delta_rule.*", "[di]plr_delta_rule"),
                ("momentum_delta_rule", "momentum_delta_rule"),
                ("precond_gated_delta_rule", "precond_gated_delta_rule"),
                ("precond_kda", "precond_kda"),
                ("rwkv7", "rwkv7"),
            )
        ),
        *(
            (f"fla.ops.{name}.*", f"chunk_{name} fused_chunk_{name} fused_recurrent_{name}", LINEAR_ATTENTION)
            for name in (
                *("gla", "gsa", "hgrn", "lightning_attn", "linear_attn", "log_linear_attn", "mesa_net"),
                *("retention", "rwkv6", "simple_gla"),
            )
        ),
    ),
)
