# SPDX-License-Identifier: Apache-2.0
"""A program on vLLM's own Python, to be captured: its layers, custom ops, metadata, forward context and the
wrappers of its kernels run as they are, on a CPU. In the place of kernels stand references: the Triton
kernels below their grids, the compiled op below its schema, FlashInfer's, CuTe DSL's and FlashMLA's
functions, the causal convolution (identity, which is not recorded: test_conv.py has it).

Prints one JSON line: digests by step of what the layer returned and left in its pool.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

H, HV, D, SLOTS = 2, 4, 64, 9
PREFIX = "model.layers.3.linear_attn"
SWA_PREFIX = "model.layers.0.attn.swa_cache"
FLASH_MLA = "vllm.v1.attention.ops.flashmla"
DEEPSEEK = "vllm.models.deepseek_v4.nvidia.flashmla"
GDN = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"


def definition(file: str) -> Any:
    """A module by its file: a folder of one has packages of the frameworks' names."""
    path = Path(__file__).parent / file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RULE, SWA = definition("frameworks/delta_rule.py"), definition("swa_engine.py")


class Kernel:
    """Stands for a Triton kernel: `kernel[grid](...)` calls `run`."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __getitem__(self, grid: object) -> Any:
        return self._run


def over_pool(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    pool: Tensor,
    cu_seqlens: Any,
    slots: Tensor,
    accepted: Tensor | None,
    o: Tensor,
    normalise: bool,
) -> None:
    """q, k [T, H, D], v, o [T, Hv, D], g, beta [T, Hv], `slots` [N] or [N, S]; slot 0 is none."""
    if normalise:
        q, k = RULE.unit(q), RULE.unit(k)
    for n in range(len(cu_seqlens) - 1):
        begin, end = int(cu_seqlens[n]), int(cu_seqlens[n + 1])
        own = slots[n].flatten().tolist()
        source = own[0 if accepted is None else int(accepted[n]) - 1]
        if begin == end or source <= 0:
            continue
        part = [x[begin:end] for x in (q, k, v, g.double().exp(), beta)]
        out, states = RULE.tokens_of(*part, pool[source].clone(), scale)
        o[begin:end] = out.to(o.dtype)
        for slot, state in zip(own, states, strict=False):
            if slot > 0:
                pool[slot] = state.to(pool.dtype)


def split(mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = mixed.split([H * D, H * D, HV * D], dim=1)
    return q.reshape(-1, H, D), k.reshape(-1, H, D), v.reshape(-1, HV, D)


def sigmoid_kernel(**a: Any) -> None:
    g, beta = RULE.raw_gates(a["a"].view(-1, HV), a["b"].view(-1, HV), a["A_log"], a["dt_bias"])
    over_pool(
        *(a[name][0] for name in "qkv"), g, beta, a["scale"], a["h0"], a["cu_seqlens"],
        a["ssm_state_indices"], a["num_accepted_tokens"], a["o"][0, 0], a["USE_QK_L2NORM_IN_KERNEL"],
    )  # fmt: skip


def packed_kernel(**a: Any) -> None:
    a["o"].zero_()
    g, beta = RULE.raw_gates(a["a"], a["b"], a["A_log"], a["dt_bias"])
    each = range(len(a["mixed_qkv"]) + 1)
    over_pool(
        *split(a["mixed_qkv"]), g, beta, a["scale"], a["h0"], each, a["ssm_state_indices"], None,
        a["o"][:, 0], a["USE_QK_L2NORM_IN_KERNEL"],
    )  # fmt: skip


def recurrent_kernel(**a: Any) -> None:
    over_pool(
        *(a[name][0] for name in ("q", "k", "v", "g", "beta")), a["scale"], a["h0"], a["cu_seqlens"],
        a["ssm_state_indices"], a["num_accepted_tokens"], a["o"][0, 0], a["USE_QK_L2NORM_IN_KERNEL"],
    )  # fmt: skip


def mtp_op(
    mixed_qkv: Tensor, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, state_indices: Tensor,
    cu_seqlens: Tensor, num_accepted_tokens: Tensor, state: Tensor, output_gate: Tensor, norm_weight: Tensor,
    out: Tensor, scale: float, norm_eps: float, output_gate_activation: str,
) -> None:  # fmt: skip
    g, beta = RULE.raw_gates(a, b, A_log, dt_bias)
    o = torch.zeros(out.shape, dtype=torch.float64)
    over_pool(
        *split(mixed_qkv), g, beta, scale, state, cu_seqlens, state_indices, num_accepted_tokens, o, True
    )
    root = (o.square().mean(-1, keepdim=True) + norm_eps).sqrt()
    gate = output_gate.double()
    out.copy_((o / root * norm_weight.double() * gate * gate.sigmoid()).to(out.dtype))


def post_conv_kernel(**a: Any) -> None:
    q, k, v = split(a["mixed_qkv_ptr"])
    a["q_ptr"].copy_(RULE.unit(q))
    a["k_ptr"].copy_(RULE.unit(k))
    a["v_ptr"].copy_(v)
    g, beta = RULE.raw_gates(a["a_ptr"], a["b_ptr"], a["A_log_ptr"], a["dt_bias_ptr"])
    a["g_ptr"].copy_(g)
    a["beta_ptr"].copy_(beta)


def chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    beta: Tensor,
    states: Tensor,
    offsets: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """o [T, Hv, D] of v's dtype and final states, fp32."""
    o, final = torch.empty_like(v), torch.empty(states.shape)
    for n in range(len(offsets) - 1):
        part = slice(int(offsets[n]), int(offsets[n + 1]))
        out, after = RULE.tokens_of(*(x[part] for x in (q, k, v, alpha, beta)), states[n], scale)
        o[part], final[n] = out.to(v.dtype), after[-1].float()
    return o, final


def chunk_forward(**a: Any) -> tuple[Any, ...]:
    """Triton's chunk kernels, as one."""
    o, final = chunks(
        a["q"][0], a["k"][0], a["v"][0], a["g"][0].double().exp(), a["beta"][0], a["initial_state"],
        a["cu_seqlens"], a["scale"],
    )  # fmt: skip
    return a["g"], o[None], None, final, None, None, None


def flashinfer_chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor, output_final_state: bool,
    cu_seqlens: Tensor, **others: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    assert output_final_state
    return chunks(q, k, v, g.double(), beta, initial_state, cu_seqlens, D**-0.5)


def cutedsl_chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor, cu_seqlens: Tensor,
    **others: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    o, final = chunks(q[0], k[0], v[0], g[0].double().exp(), beta[0], initial_state, cu_seqlens, D**-0.5)
    return o[None], final.to(initial_state.dtype)


def flash_mla_with_kvcache(
    q: Tensor, k_cache: Tensor, block_table: None, cache_seqlens: None, head_dim_v: int,
    tile_scheduler_metadata: object, num_splits: None = None, softmax_scale: float | None = None,
    causal: bool = False, is_fp8_kvcache: bool = False, indices: Tensor | None = None,
    attn_sink: Tensor | None = None, extra_k_cache: Tensor | None = None,
    extra_indices_in_kvcache: Tensor | None = None, topk_length: Tensor | None = None,
    extra_topk_length: Tensor | None = None, out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    metadata = SWA.Metadata(indices, topk_length)
    o, lse = SWA.attention(q[:, 0], k_cache[:, :, 0], metadata, "fp8_ds_mla", None, attn_sink, softmax_scale)
    assert out is not None
    return out.copy_(o[:, None].to(out.dtype)), lse[..., None].float()


def replace_kernels(layer_module: Any) -> None:
    from vllm.triton_utils import triton

    if not hasattr(triton, "next_power_of_2"):  # vLLM's placeholder of a Triton that is not there
        triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
    ops = "vllm.third_party.flash_linear_attention.ops"
    recurrent = importlib.import_module(f"{ops}.fused_recurrent")
    recurrent.fused_recurrent_gated_delta_rule_packed_decode_kernel = Kernel(packed_kernel)
    recurrent.fused_recurrent_gated_delta_rule_fwd_kernel = Kernel(recurrent_kernel)
    sigmoid = importlib.import_module(f"{ops}.fused_sigmoid_gating")
    sigmoid.fused_sigmoid_gating_delta_rule_update_kernel = Kernel(sigmoid_kernel)
    importlib.import_module(f"{ops}.chunk").chunk_gated_delta_rule_fwd = chunk_forward
    post_conv = importlib.import_module(f"{ops}.fused_gdn_prefill_post_conv")
    post_conv._fused_post_conv_kernel = Kernel(post_conv_kernel)
    layer_module.causal_conv1d_fn = lambda x, *args, **kwargs: x
    layer_module.causal_conv1d_update = lambda x, *args, **kwargs: x
    for name, function, value in (
        ("flashinfer.gdn_prefill", "chunk_gated_delta_rule", flashinfer_chunk),
        (
            "vllm.model_executor.layers.mamba.ops.gdn_chunk_cutedsl",
            "chunk_gated_delta_rule_cutedsl",
            cutedsl_chunk,
        ),
    ):
        module = ModuleType(name)
        setattr(module, function, value)
        sys.modules.setdefault("flashinfer", ModuleType("flashinfer"))
        sys.modules[name] = module
    schema = (
        "fused_gdn_decode_post_conv_mtp(Tensor mixed_qkv, Tensor a, Tensor b, Tensor A_log, Tensor dt_bias,"
        " Tensor state_indices, Tensor cu_seqlens, Tensor num_accepted_tokens, Tensor(a!) state,"
        " Tensor output_gate, Tensor norm_weight, Tensor(b!) out, float scale, float norm_eps,"
        " str output_gate_activation) -> ()"
    )
    library = torch.library.Library("_C", "FRAGMENT")
    library.define(schema)
    library.impl("fused_gdn_decode_post_conv_mtp", mtp_op, "CPU")
    replace_kernels.library = library  # type: ignore[attr-defined]  # it lives as long as its op


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def layer_of(module: Any, backend: str, dtype: torch.dtype) -> Any:
    """The layer as its methods find it, without the weights and the distributed groups of its constructor."""
    kind = module.QwenGatedDeltaNetAttention
    layer = nn.Module.__new__(kind)
    nn.Module.__init__(layer)
    dim = 2 * H * D + HV * D
    page = random(SLOTS, 4 * dim + HV * D * D).to(dtype)
    conv = page[:, : 3 * dim].view(SLOTS, 3, dim)
    pool = page[:, 4 * dim :].view(SLOTS, HV, D, D)
    known = {
        "prefix": PREFIX, "layer_idx": 3, "kv_cache": (conv, pool), "activation": "silu",
        "num_k_heads": H, "num_v_heads": HV, "head_k_dim": D, "head_v_dim": D, "key_dim": H * D,
        "value_dim": HV * D, "tp_size": 1, "enable_packed_recurrent_decode": True,
        "gdn_decode_kernel": "cuda", "layer_norm_epsilon": 1e-6, "disable_tp_for_ba_proj": False,
        "conv1d": nn.Conv1d(dim, dim, 4, groups=dim, bias=False),
        "norm": SimpleNamespace(weight=random(D).bfloat16(), activation="silu"),
        "A_log": random(HV), "dt_bias": random(HV, seed=4).bfloat16(),
    }  # fmt: skip
    for name, value in known.items():
        object.__setattr__(layer, name, value)
    op = nn.Module.__new__(module.ChunkGatedDeltaRule)
    nn.Module.__init__(op)
    methods = {"flashinfer": "cuda", "triton": "native", "cutedsl": "cutedsl"}
    op._forward_method = getattr(op, f"forward_{methods[backend]}")
    object.__setattr__(layer, "chunk_gated_delta_rule", op)
    return layer


def ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


NONE = {
    "num_prefills": 0, "num_prefill_tokens": 0, "num_decodes": 0, "num_decode_tokens": 0,
    "num_spec_decodes": 0, "num_spec_decode_tokens": 0,
}  # fmt: skip
STATES = {"prefill_state_indices": ints(4, 7), "prefill_has_initial_state": torch.tensor([False, True])}
PREFILL = {
    "num_prefills": 2, "num_prefill_tokens": 70, "num_actual_tokens": 70, **STATES,
    "has_initial_state": STATES["prefill_has_initial_state"], "prefill_query_start_loc": ints(0, 65, 70),
    "non_spec_query_start_loc": ints(0, 65, 70), "non_spec_state_indices_tensor": ints(4, 7),
    "chunk_indices": ints([0, 0], [0, 1], [1, 0]), "chunk_offsets": ints(0, 2, 3),
}  # fmt: skip
MIXED = {
    **PREFILL, "num_decodes": 2, "num_decode_tokens": 2, "num_actual_tokens": 72,
    "non_spec_query_start_loc": ints(0, 1, 2, 67, 72), "non_spec_state_indices_tensor": ints(2, 3, 4, 7),
    "has_initial_state": torch.tensor([True, True, False, True]),
}  # fmt: skip
DECODE = {
    "num_decodes": 4, "num_decode_tokens": 4, "num_actual_tokens": 4,
    "non_spec_query_start_loc": ints(0, 1, 2, 3, 4), "non_spec_state_indices_tensor": ints(4, 0, 7, 1),
}  # fmt: skip
SPECULATIVE = {
    "num_spec_decodes": 2, "num_spec_decode_tokens": 4, "num_actual_tokens": 4,
    "spec_query_start_loc": ints(0, 2, 4), "spec_state_indices_tensor": ints([4, 1], [2, 3]),
    "spec_sequence_masks": torch.tensor([True, True]), "num_accepted_tokens": ints(1, 2),
}  # fmt: skip
RAGGED = {
    **SPECULATIVE, "num_spec_decode_tokens": 3, "num_actual_tokens": 3, "spec_query_start_loc": ints(0, 2, 3),
}  # fmt: skip


def digest(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class Engine:
    """Steps of one layer, each as its custom op runs it."""

    def __init__(self, backend: str, dtype: torch.dtype = torch.float32) -> None:
        self._gdn = importlib.import_module(GDN)
        self.layer = layer_of(self._gdn, backend, dtype)

    def inputs(self, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mixed = random(tokens, 2 * H * D + HV * D).bfloat16()
        a, b = random(tokens, HV, seed=3).bfloat16(), random(tokens, HV, seed=5).bfloat16()
        return mixed, a, b, torch.zeros(tokens, HV, D, dtype=torch.bfloat16)

    @contextlib.contextmanager
    def running(self, metadata: dict[str, Any] | None) -> Any:
        from vllm import forward_context as context
        from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata

        step = None if metadata is None else {PREFIX: GDNAttentionMetadata(**{**NONE, **metadata})}
        made = context.ForwardContext(
            no_compile_layers={PREFIX: self.layer}, attn_metadata=step, slot_mapping={}
        )
        with torch.no_grad(), context.override_forward_context(made):
            yield

    def step(self, metadata: dict[str, Any]) -> str:
        tokens = metadata["num_actual_tokens"]
        mixed, a, b, out = self.inputs(tokens)
        with self.running(metadata):
            torch.ops.vllm.qwen_gdn_attention_core(mixed, b, a, out, layer_name=PREFIX)
        if metadata is DECODE:
            out = out[metadata["non_spec_state_indices_tensor"] > 0]  # rows of padding are never written
        return digest(out, self.layer.kv_cache[1])

    def fused_speculation(self) -> str:
        mixed, a, b, out = self.inputs(4)
        gate = random(4, HV * D, seed=8).bfloat16()
        both = torch.cat([mixed, gate], 1), torch.cat([b, a], 1)
        with self.running(SPECULATIVE):
            torch.ops.vllm.qwen_gdn_attention_core_fused_norm_packed(*both, out, layer_name=PREFIX)
        return digest(out, self.layer.kv_cache[1])


def pages(blocks: int) -> Tensor:
    """fp8_ds_mla [blocks, 64, 584], 37440 bytes apart; codes that are no NaN."""
    make = torch.Generator().manual_seed(13)
    data = torch.randint(0, 256, (blocks, 64, 576), generator=make, dtype=torch.uint8)
    data[..., :448].masked_fill_((data[..., :448] & 0x7F) == 0x7F, 1)
    data[..., 448:] = torch.randn(blocks, 64, 64, generator=make).bfloat16().view(torch.uint8)
    scales = torch.randint(116, 122, (blocks, 64 * 8), generator=make, dtype=torch.uint8)
    held = torch.zeros(blocks, 37440, dtype=torch.uint8)
    held[:, : 64 * 584] = torch.cat([data.flatten(1), scales], 1)
    return held.as_strided((blocks, 64, 584), (37440, 584, 1))


def sliding_window() -> str:
    """One step of a layer of DeepSeek-V4: three requests, the last of which is padding with stale indices."""
    kind = importlib.import_module(DEEPSEEK).DeepseekV4FlashMLAAttention
    from vllm import forward_context as context
    from vllm.v1.attention.backends.mla.sparse_swa import DeepseekSparseSWAMetadata

    cache = pages(6)
    indices = torch.full((3, 1, 128), -1, dtype=torch.int32)
    indices[0, 0] = torch.arange(70, 198)
    indices[1, 0, :9] = torch.arange(320, 329)
    indices[2] = 1 << 20
    layer = nn.Module.__new__(kind)
    nn.Module.__init__(layer)
    known = {
        "prefix": "model.layers.0.attn", "layer_idx": 0, "compress_ratio": 1, "scale": 512**-0.5,
        "kv_cache": None, "attn_sink": random(64), "swa_cache_layer": SimpleNamespace(
            prefix=SWA_PREFIX, kv_cache=cache),
    }  # fmt: skip
    for name, value in known.items():
        object.__setattr__(layer, name, value)
    step = DeepseekSparseSWAMetadata(
        block_table=ints([0]), slot_mapping=ints(0), block_size=64, seq_lens=ints(198, 9, 0),
        query_start_loc=ints(0, 1, 2, 3), decode_swa_indices=indices, decode_swa_lens=ints(128, 9, 0),
        num_decodes=3, num_decode_tokens=3, tile_sched_swaonly=object(),
    )  # fmt: skip
    made = context.ForwardContext(no_compile_layers={}, attn_metadata={SWA_PREFIX: step}, slot_mapping={})
    q = random(3, 64, 512).bfloat16()
    out = torch.empty_like(q)
    with torch.no_grad(), context.override_forward_context(made):
        layer.forward_mqa(q, None, None, out)
    return digest(out)


def main() -> None:
    # The layer's module takes the function from this one.
    importlib.import_module(FLASH_MLA).flash_mla_with_kvcache = flash_mla_with_kvcache
    replace_kernels(importlib.import_module(GDN))
    found = {}
    for backend in ("flashinfer", "triton", "cutedsl"):
        dtype = torch.bfloat16 if backend == "cutedsl" else torch.float32
        found[f"prefill {backend}"] = Engine(backend, dtype).step(PREFILL)
    found["prefill and decode"] = Engine("triton").step(MIXED)
    found["decode"] = Engine("triton").step(DECODE)
    plain = Engine("triton")
    plain.layer.enable_packed_recurrent_decode = False
    found["decode, not packed"] = plain.step(DECODE)
    found["speculative"] = Engine("triton").step(SPECULATIVE)
    found["speculative, ragged"] = Engine("triton").step(RAGGED)
    found["sliding window"] = sliding_window()
    found["speculative, fused"] = Engine("triton", torch.bfloat16).fused_speculation()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
