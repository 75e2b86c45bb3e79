# SPDX-License-Identifier: Apache-2.0
"""Whose the sequences of a call are in vLLM, from its runners' own state of a step.

A step is `execute_model` of a runner. What its batch is, is known once the runner has prepared its inputs:

    vllm.v1.worker.gpu_model_runner (V1)    `_prepare_inputs`: input_batch.req_ids in batch order,
        num_computed_tokens on the device, num_decode_draft_tokens
    vllm.v1.worker.gpu.model_runner (V2)    `prepare_inputs` returns an InputBatch: req_ids, positions,
        query_start_loc, num_draft_tokens_per_req

With asynchronous scheduling and drafts the host's counts of computed tokens are optimistic, so positions
are taken from the device. Dummy runs prepare no inputs: their calls have no claims. Prefixes are hashed only
where the tokens decide the state: not with images, LoRA or embeddings in a prompt, and not where states also
come from checkpoints within a prompt or from another host.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gdnbench.capture.adapter import Target
from gdnbench.capture.adapters.serving_steps import PAST_END, Batch
from gdnbench.capture.claims import prefix_digits, prefix_hasher
from gdnbench.capture.parts import Part

if TYPE_CHECKING:
    from torch import Tensor

V1, V2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"
STEPS = (Target(V1, "GPUModelRunner.execute_model"), Target(V2, "GPUModelRunner.execute_model"))
PREPARED = (Target(V1, "GPUModelRunner._prepare_inputs"), Target(V2, "GPUModelRunner.prepare_inputs"))


@dataclass(slots=True)
class VllmStep:
    """A step that is running. `batch`: None until the runner has prepared its inputs."""

    prompts: dict[str, Sequence[int]]
    batch: Batch | None = None


@dataclass(frozen=True, slots=True)
class VllmSteps:
    """The steps of this process. `_prompts`: by runner (V2) and request, the tokens that it was admitted
    with, unless they do not decide its state."""

    _prompts: WeakKeyDictionary[Any, dict[str, Sequence[int]]] = field(default_factory=WeakKeyDictionary)

    def step(self, target: Target, arguments: Mapping[str, Any]) -> VllmStep:
        prompts = self._prompts.setdefault(arguments["self"], {})
        if target.module == V2 and not arguments.get("dummy_run", False):
            _keep_prompts(prompts, arguments["scheduler_output"])
        return VllmStep(prompts)

    def learn(self, known: VllmStep, target: Target, arguments: Mapping[str, Any], result: Any) -> None:
        runner = arguments["self"]
        if target.module == V1:
            known.batch = _batch_of_v1(runner, arguments["num_scheduled_tokens"])
        else:
            known.batch = _batch_of_v2(runner, result, known.prompts)


def _keep_prompts(prompts: dict[str, Sequence[int]], scheduled: Any) -> None:
    for request in scheduled.finished_req_ids:
        prompts.pop(request, None)
    for new in scheduled.scheduled_new_reqs:
        prompts.pop(new.req_id, None)
        if new.prefill_token_ids is not None and _tokens_decide(new):
            prompts[new.req_id] = new.prefill_token_ids


def _tokens_decide(request: Any) -> bool:
    """Whether the state of a request is a function of its tokens."""
    return not request.mm_features and request.lora_request is None and request.prompt_embeds is None


def _batch_of_v1(runner: Any, scheduled: Any) -> Batch:
    """`scheduled`: int32 [n] on the host, the tokens of each request in this step."""
    held = runner.input_batch
    count = held.num_reqs
    requests = tuple(held.req_ids[:count])
    elsewhere = writes_elsewhere(runner)
    drafted = None
    if runner.speculative_config is not None:
        drafted = tuple((runner.num_decode_draft_tokens.np[:count] >= 0).tolist())
    prefixes = None
    if not elsewhere:
        prefixes = tuple(_prefix_of_v1(runner, held, row, request) for row, request in enumerate(requests))
    return Batch(
        requests,
        runner.num_computed_tokens[:count].clone(),
        prefixes,
        [0, *scheduled.cumsum().tolist()],
        runner.positions,
        elsewhere,
        drafted,
    )


def _prefix_of_v1(runner: Any, held: Any, row: int, request: str) -> str | None:
    computed = int(held.num_computed_tokens_cpu[row])
    if not 0 < computed <= int(held.num_prompt_tokens[row]) or not _tokens_decide(runner.requests[request]):
        return None
    return prefix_of(held.token_ids_cpu[row, :computed])


def _batch_of_v2(runner: Any, held: Any, prompts: Mapping[str, Sequence[int]]) -> Batch | None:
    if getattr(runner, "pcp_manager", None) is not None:
        return None  # prompts are divided among ranks
    count = held.num_reqs
    requests = tuple(held.req_ids)
    elsewhere = writes_elsewhere(runner)
    # Under adaptive verification only the device knows how many drafts each request has.
    even = getattr(runner, "adaptive_verification", None) is None
    prefixes = None
    if not elsewhere:
        computed = held.num_computed_tokens_np[:count].tolist()
        prefixes = tuple(
            _prefix_of_v2(prompts.get(request), here)
            for request, here in zip(requests, computed, strict=True)
        )
    return Batch(
        requests,
        held.positions[held.query_start_loc[:count].long()],
        prefixes,
        held.query_start_loc_np[: count + 1].tolist() if even else None,
        held.positions,
        elsewhere,
        _drafted_of_v2(held),
    )


def _prefix_of_v2(prompt: Sequence[int] | None, computed: int) -> str | None:
    if prompt is None or not 0 < computed <= len(prompt):
        return None
    return prefix_of(prompt[:computed])


def _drafted_of_v2(held: Any) -> tuple[bool, ...]:
    """For releases before 0.31, whose metadata has the mask on the device only."""
    drafts = held.num_draft_tokens_per_req
    if drafts is None:
        return tuple([False] * len(held.req_ids))
    decodes = (held.num_scheduled_tokens == drafts + 1) & ~held.is_prefilling_np
    return tuple(((drafts > 0) & decodes).tolist())


def prefix_of(tokens: Any) -> str:
    """Of token ids, a list or an array."""
    import torch

    hasher = prefix_hasher()
    hasher.update(torch.as_tensor(tokens).numpy().astype("<i8").tobytes())
    return prefix_digits(hasher)


def writes_elsewhere(runner: Any) -> bool:
    """Whether states also come to slots in other ways than by recorded calls and copies of what those
    wrote."""
    if getattr(runner.vllm_config, "kv_transfer_config", None) is not None:
        return True
    groups = runner.kv_cache_config.kv_cache_groups
    return any(getattr(group.kv_cache_spec, "num_prefill_checkpoint_blocks", 0) for group in groups)


def part_of(step: Any, sequences: int, *, drafted: bool = False, prefill: bool = False) -> Part | None:
    """The part of a step that a call of a Gated DeltaNet layer with `sequences` sequences has.

    `step`: the layer's GDNAttentionMetadata. `drafted`: the call has the requests that verify drafts, and
    otherwise of the others the first ones, or with `prefill` the last ones.
    """
    if step is None:
        return None
    slots = _slots(step) if prefill else None
    if not getattr(step, "num_spec_decodes", 0):
        if drafted:
            return None
        first = _count(step, "non_spec_query_start_loc", sequences) - sequences if prefill else 0
        return Part(range(first, first + sequences), slots=slots) if first >= 0 else None
    if drafted and not step.num_prefills and not step.num_decodes:
        return Part(range(sequences))
    masks = getattr(step, "spec_sequence_masks_cpu", None)
    if masks is None:
        return Part(range(sequences), slots=slots, drafted=drafted)
    rows = [row for row, mask in enumerate(masks.tolist()) if mask == drafted][:sequences]
    return Part([*rows, *[PAST_END] * (sequences - len(rows))], slots=slots)


def _count(step: Any, name: str, missing: int) -> int:
    """The sequences that offsets have."""
    offsets = getattr(step, name, None)
    return missing if offsets is None else len(offsets) - 1


def _slots(step: Any) -> Tensor | None:
    """Of the sequences of a prefill. Older releases have only the latter."""
    for name in ("prefill_state_indices", "non_spec_state_indices_tensor"):
        found: Tensor | None = getattr(step, name, None)
        if found is not None:
            return found
    return None


def part_of_window(
    rows: int, step: Any, *, indices: Tensor | None = None, offsets: Tensor | None = None
) -> Part | None:
    """The part of a step that a call with a row for each query token of a window has; None without metadata.

    `step`: the layer's DeepseekSparseSWAMetadata. A step's tokens are those of decodes, then those of
    prefills, and a call has the first of either, or those of a chunk of prefills. Which is seen from whose
    memory its tables are: `offsets` of its sequences (FlashInfer on SM100), or `indices` of its windows.
    Without both it has decodes.
    """
    if step is None:
        return None
    first = 0
    if offsets is not None:
        if offsets.data_ptr() != step.query_start_loc.data_ptr():
            first = step.num_decode_tokens
    elif indices is not None and indices.data_ptr() != step.decode_swa_indices.data_ptr():
        table = step.prefill_swa_indices
        if table is None:
            return None
        apart, size = indices.data_ptr() - table.data_ptr(), table.stride(0) * table.element_size()
        if apart % size or not 0 <= apart // size < len(table):
            return None
        first = step.num_decode_tokens + apart // size
    return Part(range(first, first + rows), tokens=True)


def window_step(layer: object | None) -> Any:
    """The metadata of the running step for the window of an attention layer of vLLM; None if there is
    none."""
    return step_of_cache(getattr(layer, "swa_cache_layer", None))


def step_of_cache(cache: object | None) -> Any:
    """The metadata of the running step for a cache of vLLM, by its `prefix`; None if there is none."""
    prefix, context = getattr(cache, "prefix", None), sys.modules.get("vllm.forward_context")
    if prefix is None or context is None:
        return None
    try:
        found = context.get_forward_context().attn_metadata
    except AssertionError:  # no forward context: the layer is called directly
        return None
    return found.get(prefix) if isinstance(found, dict) else None
