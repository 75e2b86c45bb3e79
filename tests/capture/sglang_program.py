# SPDX-License-Identifier: Apache-2.0
"""A program on SGLang's own Python, to be captured: its linear attention layer, the backend of attention that
the layer asks, the dispatcher and the wrappers of Triton's kernels run as they are, on a CPU. In the place of
kernels stand references below their grids, and the identity for the causal convolution, which is not recorded
(test_conv.py has it). torchvision, which SGLang imports for its models of images, is an empty name.

Prints one JSON line: digests by step of what the layer returned and left in its pool.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import json
import sys
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import transformers  # noqa: F401  # before torchvision seems to be there
from torch import Tensor

from tests.capture.vllm_program import RULE, Kernel, digest, ints, random

H, HV, D, SLOTS, DRAFTS = 2, 4, 64, 9, 3
OPS = "sglang.kernels.ops.attention"


class Absent(MetaPathFinder, Loader):
    """Finds torchvision, with whatever name of it is asked for."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        found = name.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: Any) -> ModuleType:
        module = MagicMock(name=spec.name)
        module.__path__, module.__name__ = [], spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def over_pool(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, pool: Tensor, bounds: Any,
    slots: Tensor, o: Tensor, *, update: bool = True, each: Tensor | None = None,
) -> None:  # fmt: skip
    """All [T, ...]; rows of padding, whose slot is below 0, stay as they are."""
    for n in range(len(bounds) - 1):
        slot, part = int(slots[n]), slice(int(bounds[n]), int(bounds[n + 1]))
        if slot < 0:
            continue
        rows = (q[part], k[part], v[part], g[part].double().exp(), beta[part])
        out, states = RULE.tokens_of(*rows, pool[slot].clone(), scale)
        o[part] = out.to(o.dtype)
        if each is not None:
            each[n] = torch.stack(states).to(each.dtype)
        if update:
            pool[slot] = states[-1].to(pool.dtype)


def packed_kernel(**a: Any) -> None:
    tokens = len(a["mixed_qkv"])
    q, k, v = a["mixed_qkv"].split([H * D, H * D, HV * D], 1)
    q, k = (RULE.unit(x.reshape(tokens, H, D)) for x in (q, k))
    g, beta = RULE.raw_gates(a["a"], a["b"], a["A_log"], a["dt_bias"])
    a["o"].zero_()  # as the kernel leaves rows of padding
    over_pool(
        q, k, v.reshape(tokens, HV, D), g, beta, a["scale"], a["h0"], range(tokens + 1),
        a["ssm_state_indices"], a["o"][:, 0],
    )  # fmt: skip


def sigmoid_kernel(**a: Any) -> None:
    g, beta = RULE.raw_gates(a["a"], a["b"], a["A_log"], a["dt_bias"])
    q, k = RULE.unit(a["q"][0]), RULE.unit(a["k"][0])
    a["o"].zero_()
    over_pool(
        q, k, a["v"][0], g, beta, a["scale"], a["h0_source"], a["cu_seqlens"], a["h0_indices"], a["o"][0, 0],
        update=not a["DISABLE_STATE_UPDATE"], each=a["intermediate_states_buffer"],
    )  # fmt: skip


def chunk_forward(**a: Any) -> tuple[Any, ...]:
    """Triton's chunk kernels, as one."""
    o = torch.empty_like(a["v"])
    rows = (a[name][0] for name in ("q", "k", "v", "g", "beta"))
    over_pool(
        *rows, a["scale"], a["initial_state"], a["cu_seqlens"], a["initial_state_indices"], o[0],
        update=a["inplace_update"],
    )  # fmt: skip
    return a["g"], o, None, None, None, None


def gating(A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    g, beta = RULE.raw_gates(a, b, A_log, dt_bias)
    return g.float()[None], beta.float()[None]


def replace_kernels(backend: Any) -> None:
    backend.causal_conv1d_fn = backend.causal_conv1d_update = lambda x, *args, **kwargs: x
    backend.fused_gdn_gating = gating
    devices = importlib.import_module(f"{OPS}.fla.utils")
    devices.custom_device_ctx = lambda index: contextlib.nullcontext()  # torch.cpu has none
    chunk = importlib.import_module(f"{OPS}.fla.chunk")
    chunk.chunk_gated_delta_rule_fwd = chunk_forward
    chunk.l2norm_fwd = lambda x: RULE.unit(x).to(x.dtype)
    recurrent = importlib.import_module(f"{OPS}.fla.fused_recurrent")
    recurrent.fused_recurrent_gated_delta_rule_packed_decode_kernel = Kernel(packed_kernel)
    sigmoid = importlib.import_module(f"{OPS}.linear.fused_sigmoid_gating_recurrent")
    sigmoid.fused_sigmoid_gating_delta_rule_update_kernel = Kernel(sigmoid_kernel)
    sigmoid.is_arch_support_pdl = lambda: False  # it asks the GPU


class Engine:
    """Steps of one layer of a model, as SGLang's runner of models runs them."""

    def __init__(self, gdn: Any) -> None:
        hybrid = importlib.import_module("sglang.srt.layers.attention.hybrid_linear_attn_backend")
        radix = importlib.import_module("sglang.srt.layers.radix_linear_attention")
        self.pool = random(SLOTS, HV, D, D)
        self.layer = radix.RadixLinearAttention(
            3, H, H, HV, D, D, D, A_log=random(HV), dt_bias=random(HV, seed=4).bfloat16()
        )
        triton = gdn.LinearAttnKernelBackend.TRITON
        linear = object.__new__(gdn.GDNAttnBackend)
        linear.kernel_dispatcher = gdn.GDNKernelDispatcher(triton, triton)
        linear.req_to_token_pool = SimpleNamespace(
            mamba2_layer_cache=lambda layer_id: self.cache, size=SLOTS, mamba_pool=SimpleNamespace()
        )
        linear.verify_intermediate_state_indices = torch.arange(SLOTS, dtype=torch.int32)
        linear.mis_metadata, linear._use_strided_target_verify_qkv = None, True
        self.linear = linear
        self.backend = object.__new__(hybrid.HybridLinearAttnBackend)
        self.backend.full_attn_layers, self.backend.linear_attn_backend = [], linear
        self.cache = importlib.import_module("sglang.srt.mem_cache.memory_pool").MambaPool.SpeculativeState(
            conv=[torch.zeros(SLOTS, 2 * H * D + HV * D, 3)], temporal=self.pool,
            intermediate_ssm=torch.zeros(SLOTS, DRAFTS, HV, D, D), intermediate_conv_window=[None],
        )  # fmt: skip

    def step(self, mode: str, bounds: Tensor, slots: Tensor, prefixes: Tensor | None = None) -> str:
        context = importlib.import_module("sglang.srt.model_executor.forward_context")
        info = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
        metadata = importlib.import_module("sglang.srt.layers.attention.mamba.mamba2_metadata")
        self.linear.forward_metadata = metadata.ForwardMetadata(
            query_start_loc=bounds, mamba_cache_indices=slots
        )
        running = info.ForwardMode[mode]
        batch = SimpleNamespace(
            forward_mode=running, logical_forward_mode=running, batch_size=len(slots), mamba_track_mask=None,
            extend_prefix_lens=prefixes, extend_seq_lens_cpu=bounds.diff().tolist(), req_pool_indices=slots,
            spec_info=SimpleNamespace(draft_token_num=DRAFTS), global_num_token_non_padded_cpu=None,
        )  # fmt: skip
        tokens = int(bounds[-1])
        mixed = random(tokens, 2 * H * D + HV * D).bfloat16()
        a, b = random(tokens, HV, seed=3).bfloat16(), random(tokens, HV, seed=5).bfloat16()
        with torch.no_grad(), context.forward_context(context.ForwardContext(attn_backend=self.backend)):
            o = self.layer(batch, mixed, a, b)
        return digest(o, self.pool)


def main() -> None:
    sys.meta_path.append(Absent())
    gdn = importlib.import_module("sglang.srt.layers.attention.linear.gdn_backend")
    replace_kernels(gdn)
    engine, found = Engine(gdn), {}
    found["prefill"] = engine.step("EXTEND", ints(0, 65, 70), ints(4, 0), torch.tensor([0, 12]))
    found["decode"] = engine.step("DECODE", ints(0, 1, 2, 3), ints(4, -1, 0))
    engine.linear.kernel_dispatcher.supports_packed_decode = False
    found["decode, not packed"] = engine.step("DECODE", ints(0, 1, 2), ints(4, 0))
    found["verification"] = engine.step("TARGET_VERIFY", ints(0, 3, 6), ints(4, 0))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
