# SPDX-License-Identifier: Apache-2.0
"""A program on vLLM's own runner of models, to be captured: `execute_model`, the state of its batch, the
preparation of its inputs, the builder of its layers' metadata and one layer run as they are, on a CPU. The
runner is made without a model and a configuration. In the place of its model stands the layer over references
of its kernels; its scheduler and sampler are what `STEPS` says.

Prints one JSON line: digests by step of what the layer returned and left in its pool. Arguments:

    asynchronous    the scheduler does not know yet how many drafts of the step before were right, and counts
                    all of them; the device knows
    stale-slots     a bug: the third step hands a request's slots to the kernel in another order
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # what vLLM compiles for a device runs as it is

import numpy as np
import torch
from torch import Tensor

from tests.capture.vllm_program import GDN, HV, PREFIX, D, Engine, digest, replace_kernels

DRAFTS = 2
ROWS, LONGEST, TOKENS = 4, 32, 64
PROMPTS = {"a": [3, 1, 4, 1, 5, 9, 2, 6], "b": [2, 7, 1]}
RUNNER = "vllm.v1.worker.gpu_model_runner"


@dataclass(frozen=True)
class Step:
    """By request: scheduled tokens, computed tokens as the scheduler counts them, drafts, tokens that are
    sampled afterwards. `blocks`: of requests that begin. `rows`: of a CUDA graph that the batch is filled up
    to."""

    tokens: dict[str, int]
    computed: dict[str, int]
    sampled: dict[str, int]
    drafts: tuple[str, ...] = ()
    blocks: dict[str, list[int]] = field(default_factory=dict)
    rows: int | None = None


STEPS = [
    Step({"a": 5, "b": 3}, {"a": 0, "b": 0}, {"b": 1}, blocks={"a": [1, 2, 3], "b": [4, 5, 6]}),
    Step({"a": 3, "b": 3}, {"a": 5, "b": 3}, {"a": 1, "b": 2}, drafts=("b",)),
    Step({"a": 3, "b": 3}, {"a": 8, "b": 5}, {"a": 3, "b": 1}, drafts=("a", "b"), rows=3),
    Step({"a": 3}, {"a": 11}, {"a": 1}, drafts=("a",)),
    Step({"a": 3, "b": 7}, {"a": 12, "b": 0}, {"a": 1, "b": 1}, drafts=("a",), blocks={"b": [7, 8, 6]}),
    Step({"a": 1, "b": 1}, {"a": 13, "b": 7}, {"a": 1, "b": 1}),
]


def scheduler_output(step: Step, runner: Any) -> Any:
    """What the scheduler would send."""
    computed = dict(step.computed)
    before = STEPS[STEPS.index(step) - 1]
    if runner.use_async_scheduling:
        computed |= {
            name: before.computed[name] + before.tokens[name]
            for name in before.drafts
            if name in step.tokens and name not in step.blocks
        }
    output = importlib.import_module("vllm.v1.core.sched.output")
    params = importlib.import_module("vllm.sampling_params").SamplingParams(temperature=0.0)
    fresh = [name for name in step.tokens if name not in runner.requests]
    cached = [name for name in step.tokens if name in runner.requests]
    new = [
        output.NewRequestData(
            req_id=name, prompt_token_ids=PROMPTS[name], mm_features=[], sampling_params=params,
            pooling_params=None, block_ids=(list(step.blocks[name]),),
            num_computed_tokens=computed[name], lora_request=None, prefill_token_ids=PROMPTS[name],
        )
        for name in fresh
    ]  # fmt: skip
    outputs = {name: runner.requests[name].output_token_ids for name in cached}
    requests = output.CachedRequestData(
        req_ids=cached,
        resumed_req_ids={name for name in cached if name in step.blocks},
        new_token_ids=[],
        all_token_ids={name: PROMPTS[name] + outputs[name] for name in cached},
        new_block_ids=[(list(step.blocks[name]),) if name in step.blocks else None for name in cached],
        num_computed_tokens=[computed[name] for name in cached],
        num_output_tokens=[len(outputs[name]) for name in cached],
    )
    return output.SchedulerOutput(
        scheduled_new_reqs=new, scheduled_cached_reqs=requests, num_scheduled_tokens=step.tokens,
        total_num_scheduled_tokens=sum(step.tokens.values()),
        scheduled_spec_decode_tokens={name: [11] * DRAFTS for name in step.drafts},
        scheduled_encoder_inputs={}, finished_req_ids=set(), free_encoder_mm_hashes=[],
    )  # fmt: skip


def builder_of(gdn: Any, spec: Any, config: Any) -> Any:
    """The builder of the layer's metadata, without its constructor, which reads a whole configuration."""
    builder = object.__new__(gdn.GDNAttentionMetadataBuilder)
    ints = {"dtype": torch.int32}
    rows = ROWS * (DRAFTS + 1)
    known = {
        "kv_cache_spec": spec, "vllm_config": config, "device": torch.device("cpu"),
        "checkpoint_builder": SimpleNamespace(build=lambda m, rows: None), "gdn_prefill_backend": "triton",
        "plan_flashinfer_checkpoints": False, "num_spec": DRAFTS, "use_spec_decode": True,
        "use_full_cuda_graph": True, "supports_update_block_table": False, "decode_cudagraph_max_bs": rows,
        "spec_state_indices_tensor": torch.zeros(rows, DRAFTS + 1, **ints),
        "non_spec_state_indices_tensor": torch.zeros(rows, **ints),
        "spec_sequence_masks": torch.zeros(rows, dtype=torch.bool),
        "spec_token_indx": torch.zeros(rows * (DRAFTS + 1), **ints),
        "non_spec_token_indx": torch.zeros(rows * (DRAFTS + 1), **ints),
        "spec_query_start_loc": torch.zeros(rows + 1, **ints),
        "non_spec_query_start_loc": torch.zeros(rows + 1, **ints),
        "num_accepted_tokens": torch.zeros(rows, **ints),
    }  # fmt: skip
    for name, value in known.items():
        setattr(builder, name, value)
    return builder


class Hashable(SimpleNamespace):
    """By identity."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class NoEvent:
    def synchronize(self) -> None: ...
    def record(self) -> None: ...


def runner_of(module: Any, engine: Engine) -> Any:
    """A runner with what a step of `execute_model` reads."""
    buffer = importlib.import_module("vllm.v1.utils").CpuGpuBuffer
    batches = importlib.import_module("vllm.v1.worker.gpu_input_batch")
    tables = importlib.import_module("vllm.v1.worker.block_table")
    utils = importlib.import_module("vllm.v1.worker.utils")
    gdn = importlib.import_module("vllm.v1.attention.backends.gdn_attn")
    device = torch.device("cpu")
    caches = SimpleNamespace(mamba_cache_mode="none", kv_sharing_fast_prefill=False, use_replayssm=False)
    config = SimpleNamespace(cache_config=caches, kv_transfer_config=None)
    spec = Hashable(num_speculative_blocks=DRAFTS, block_size=LONGEST, num_prefill_checkpoint_blocks=0)
    group = SimpleNamespace(kv_cache_spec=spec, layer_names=[PREFIX])
    attention = utils.AttentionGroup(
        gdn.GDNAttentionBackend, [PREFIX], spec, 0, metadata_builders=[builder_of(gdn, spec, config)]
    )

    def ints(*size: int, dtype: torch.dtype = torch.int32) -> Any:
        return buffer(*size, dtype=dtype, device=device, pin_memory=False)

    runner = object.__new__(module.GPUModelRunner)
    known = {
        "vllm_config": config, "cache_config": caches, "device": device, "lora_config": None,
        "parallel_config": SimpleNamespace(
            num_ubatches=1, distributed_executor_backend=None, data_parallel_size=1
        ),
        "model_config": SimpleNamespace(
            is_encoder_decoder=False, rswa_window=None, is_hybrid=True, max_model_len=LONGEST
        ),
        "speculative_config": SimpleNamespace(
            use_ngram_gpu=lambda: False, num_speculative_tokens=DRAFTS, method="mtp"
        ),
        "drafter": object(), "execute_model_state": None, "requests": {}, "num_prompt_logprobs": {},
        "late_interaction_runner": SimpleNamespace(
            on_requests_finished=lambda ids: None, register_request=lambda name, params: None
        ),
        "encoder_cache": {}, "use_async_scheduling": False, "use_async_spec_decode": False,
        "is_pooling_model": False, "uses_mrope": False, "enable_prompt_embeds": False,
        "prepare_inputs_event": None, "eplb_state": None, "use_aux_hidden_state_outputs": False,
        "broadcast_pp_output": False, "is_mm_prefix_lm": False, "dcp_world_size": 1, "_pp_recv_work": None,
        "valid_sampled_token_count_gpu": None, "prev_num_spec_tokens": DRAFTS,
        "max_model_len": LONGEST, "reorder_batch_threshold": None,
        "kv_cache_config": SimpleNamespace(kv_cache_groups=[group]), "attn_groups": [[attention]],
        "num_accepted_tokens_event": NoEvent(), "kv_caches": [], "kv_connector_output": None,
        "arange_np": np.arange(TOKENS), "_arange_scratch": np.zeros(TOKENS, dtype=np.int64),
        "query_pos": ints(TOKENS, dtype=torch.int64), "input_ids": ints(TOKENS),
        "query_start_loc": ints(ROWS + 1), "prev_positions": ints(ROWS, dtype=torch.int64),
        "discard_request_mask": ints(ROWS, dtype=torch.bool), "num_accepted_tokens": ints(ROWS),
        "req_indices": ints(TOKENS, dtype=torch.int64), "num_scheduled_tokens": ints(ROWS),
        "num_decode_draft_tokens": ints(ROWS), "prev_num_draft_tokens": ints(ROWS),
        "optimistic_seq_lens_cpu": torch.zeros(ROWS, dtype=torch.int32),
        "num_computed_tokens": torch.zeros(ROWS, dtype=torch.int32),
        "positions": torch.zeros(TOKENS, dtype=torch.int64),
        "seq_lens": torch.zeros(ROWS, dtype=torch.int32),
        "is_padding": torch.zeros(TOKENS, dtype=torch.bool),
        "model": SimpleNamespace(compute_logits=lambda hidden: hidden),
        "input_batch": batches.InputBatch(
            max_num_reqs=ROWS, max_model_len=LONGEST, max_num_batched_tokens=TOKENS, device=device,
            vocab_size=32, block_sizes=[LONGEST], max_num_blocks_per_req=[DRAFTS + 1],
            num_spec_tokens=DRAFTS, slot_mapping_modes=[tables.SlotMappingMode.NONE],
        ),
    }  # fmt: skip
    for name, value in known.items():
        setattr(runner, name, value)
    runner._preprocess = lambda scheduled, tokens, intermediate: (None, None, None, None, {}, None)
    runner._allow_microbatching = lambda requests, scheduled: False
    return runner


class Server:
    """The runner and its layer, step by step."""

    def __init__(self, *, stale: bool, asynchronous: bool) -> None:
        self._module = importlib.import_module(RUNNER)
        self._engine, self._stale = Engine("triton"), stale
        self._engine.layer.kv_cache[1].zero_()
        self.runner = runner_of(self._module, self._engine)
        self.runner.use_async_scheduling = self.runner.use_async_spec_decode = asynchronous
        self.runner._get_valid_sampled_token_count = lambda: (
            self.runner.valid_sampled_token_count_gpu.tolist()
        )
        self.runner._model_forward = self._forward
        self.runner._determine_batch_execution_and_padding = self._execution
        self._module.get_pp_group = lambda: SimpleNamespace(is_last_rank=True, ranks=[0])
        self._module.set_forward_context = self._context
        self._out: Tensor | None = None
        self._step = STEPS[0]

    def _execution(self, **given: Any) -> Any:
        """Whether the step runs as a CUDA graph, which it does by its layer's Python here."""
        compilation = importlib.import_module("vllm.config.compilation")
        described = importlib.import_module("vllm.forward_context").BatchDescriptor
        rows, tokens = self._step.rows, given["num_tokens"]
        if rows is None:
            return compilation.CUDAGraphMode.NONE, described(num_tokens=tokens), False, None, None
        each = max(self._step.tokens.values())
        return compilation.CUDAGraphMode.FULL, described(rows * each, num_reqs=rows), False, None, None

    @contextlib.contextmanager
    def _context(self, attn_metadata: Any, vllm_config: Any, **others: Any) -> Any:
        context = importlib.import_module("vllm.forward_context")
        made = context.ForwardContext(
            no_compile_layers={PREFIX: self._engine.layer}, attn_metadata=attn_metadata, slot_mapping={}
        )
        if self._stale and self._step is STEPS[2]:
            slots = attn_metadata[PREFIX].spec_state_indices_tensor
            row = self.runner.input_batch.req_id_to_index["b"]
            slots[row, :2] = slots[row, :2].flip(0)
        with context.override_forward_context(made):
            yield

    def _forward(self, **given: Any) -> Tensor:
        rows, each = self._step.rows, max(self._step.tokens.values())
        tokens = sum(self._step.tokens.values()) if rows is None else rows * each
        mixed, a, b, out = self._engine.inputs(tokens)
        torch.ops.vllm.qwen_gdn_attention_core(mixed, b, a, out, layer_name=PREFIX)
        self._out = out
        return torch.zeros(tokens, HV * D)

    def run(self, step: Step) -> str:
        self._step = step
        with torch.no_grad():
            self.runner.execute_model(scheduler_output(step, self.runner))
        self.runner.execute_model_state = None
        self._sample(step)
        assert self._out is not None
        return digest(self._out[: sum(step.tokens.values())], self._engine.layer.kv_cache[1][1:])

    def _sample(self, step: Step) -> None:
        """What follows a step in the runner, of the sampled tokens."""
        held = self.runner.input_batch
        held.num_accepted_tokens_cpu[:] = 1
        counts = [step.sampled.get(name, 1) for name in held.req_ids]
        if self.runner.use_async_scheduling:
            held.prev_sampled_token_ids = torch.full((len(counts), 1), 7, dtype=torch.int32)
            held.prev_req_id_to_index = dict(held.req_id_to_index)
            self.runner.valid_sampled_token_count_gpu = torch.tensor(counts, dtype=torch.int32)
            self.runner._draft_token_ids = torch.full((len(counts), DRAFTS), 11)
        for name, count in step.sampled.items():
            row = held.req_id_to_index[name]
            first = int(held.num_tokens_no_spec[row])
            held.token_ids_cpu[row, first : first + count] = 7
            held.num_tokens_no_spec[row] = first + count
            self.runner.requests[name].output_token_ids.extend([7] * count)
            held.num_accepted_tokens_cpu[row] = count


def main() -> None:
    # Before what asks for it at its import.
    platform = importlib.import_module("vllm.platforms.interface").Platform
    platform.is_pin_memory_available = classmethod(lambda kind: False)
    replace_kernels(importlib.import_module(GDN))
    server = Server(stale="stale-slots" in sys.argv, asynchronous="asynchronous" in sys.argv)
    print(json.dumps([server.run(step) for step in STEPS]))


if __name__ == "__main__":
    main()
