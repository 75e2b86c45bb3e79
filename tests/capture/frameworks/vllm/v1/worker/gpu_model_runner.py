# SPDX-License-Identifier: Apache-2.0
"""The first runner of models: what it holds of a step, under its own names, taken from a plan of the test."""

from types import SimpleNamespace

import numpy as np
import torch


class InputBatch:
    """Rows of requests; rows behind `num_reqs` are of requests that left."""

    def __init__(self, rows=8, longest=64):
        self._req_ids, self.num_reqs = [], 0
        self.token_ids_cpu = np.zeros((rows, longest), dtype=np.int32)
        self.num_computed_tokens_cpu = np.zeros(rows, dtype=np.int32)
        self.num_prompt_tokens = np.zeros(rows, dtype=np.int32)

    @property
    def req_ids(self):
        return self._req_ids


class GPUModelRunner:
    def __init__(self, vllm_config, kv_cache_config, speculative_config=None):
        self.vllm_config, self.kv_cache_config = vllm_config, kv_cache_config
        self.speculative_config = speculative_config
        self.input_batch, self.requests = InputBatch(), {}
        self.num_computed_tokens = torch.zeros(8, dtype=torch.int32)
        self.positions = torch.zeros(64, dtype=torch.int64)
        self.num_decode_draft_tokens = SimpleNamespace(np=np.full(8, -1, dtype=np.int32))

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        scheduled = np.array(list(scheduler_output.num_scheduled_tokens.values()), dtype=np.int32)
        if not len(scheduled):
            return self._dummy_run(scheduler_output)
        self._prepare_inputs(scheduler_output, scheduled)
        return scheduler_output.model(self)

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        held, plan = self.input_batch, scheduler_output
        held._req_ids, held.num_reqs = [*plan.num_scheduled_tokens], len(plan.num_scheduled_tokens)
        self.requests = {name: plan.states[name] for name in held._req_ids}
        for row, name in enumerate(held._req_ids):
            tokens = plan.states[name].prompt_token_ids
            held.token_ids_cpu[row, : len(tokens)], held.num_prompt_tokens[row] = tokens, len(tokens)
            held.num_computed_tokens_cpu[row] = plan.optimistic[row]
            self.num_computed_tokens[row] = plan.computed[row]
            self.num_decode_draft_tokens.np[row] = plan.drafts[row]
        first = 0
        for start, count in zip(plan.computed, num_scheduled_tokens, strict=True):
            self.positions[first : first + count] = torch.arange(start, start + count)
            first += count

    def _dummy_run(self, scheduler_output):
        return scheduler_output.model(self)
