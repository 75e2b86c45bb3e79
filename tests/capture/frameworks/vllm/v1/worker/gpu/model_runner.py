# SPDX-License-Identifier: Apache-2.0
"""The second runner of models: it makes an InputBatch of each step, here from a plan of the test."""

from types import SimpleNamespace

import numpy as np
import torch


class GPUModelRunner:
    def __init__(self, vllm_config, kv_cache_config):
        self.vllm_config, self.kv_cache_config = vllm_config, kv_cache_config
        self.pcp_manager, self.adaptive_verification = None, None

    def execute_model(
        self, scheduler_output, intermediate_tensors=None, dummy_run=False, skip_attn_for_dummy_run=False
    ):
        if not dummy_run:
            self.prepare_inputs(scheduler_output, None, None, 0)
        return scheduler_output.model(self)

    def prepare_inputs(self, scheduler_output, batch_req_state, batch_desc, num_active_loras):
        plan = scheduler_output
        counts = np.array(list(plan.num_scheduled_tokens.values()), dtype=np.int32)
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        # The last row is of padding, as where the batch is filled up for a CUDA graph.
        padded = np.append(bounds, bounds[-1])
        starts = zip(plan.computed, counts, strict=True)
        prompts = np.array([len(plan.states[name].prompt_token_ids) for name in plan.num_scheduled_tokens])
        return SimpleNamespace(
            req_ids=[*plan.num_scheduled_tokens],
            num_reqs=len(counts),
            num_scheduled_tokens=counts,
            query_start_loc=torch.from_numpy(padded),
            query_start_loc_np=padded,
            positions=torch.cat([torch.arange(start, start + count) for start, count in starts]),
            num_computed_tokens_np=np.array(plan.optimistic, dtype=np.int32),
            num_draft_tokens_per_req=np.maximum(np.array(plan.drafts), 0),
            is_prefilling_np=np.array(plan.optimistic) < prompts,
        )
