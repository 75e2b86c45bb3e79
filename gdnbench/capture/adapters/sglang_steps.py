# SPDX-License-Identifier: Apache-2.0
"""Whose the sequences of a call are in SGLang, from the batch that its runner of models is given.

A step is `ModelRunner.forward` with a ForwardBatch: `rids` (req_pool_indices are used again) in the batch's
order, without the rows that fill it up for a CUDA graph or for data parallel ranks. Where the first token of
each is, on the device as the host's lengths may run ahead:

    extend, mixed      extend_prefix_lens
    decode             positions
    target verify      positions at the first draft of each request

Workers of draft models have layers of their own: their calls have no claims. Neither have those of a batch
that is divided, among ranks (context parallel), in two that overlap, or in items to score, or whose requests
rewrite a block (diffusion).

Verification leaves the pool as it is: the states after each draft are in a buffer, and
`update_mamba_state_after_mtp_verify` puts one of them into the request's slot. The claims say so (`kept`;
capture adds digests of the buffer), and also whether the prefix cache takes states from within a call or from
elsewhere (`elsewhere`). There are no prefixes: the batch has only the tokens of the step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from gdnbench.capture.adapter import Target
from gdnbench.capture.adapters.serving_steps import Batch
from gdnbench.capture.parts import Part

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench.capture.claims import Claims

STEPS = (Target("sglang.srt.model_executor.model_runner", "ModelRunner.forward"),)
CONTEXT = "sglang.srt.model_executor.forward_context"


DIVIDED = ("attn_cp_metadata", "tbo_split_seq_index", "multi_item_delimiter_indices")
"""What a ForwardBatch has if its calls are not of its sequences in order; the first is set in the step."""


class SglangStep(NamedTuple):
    """A step that is running."""

    batch: Batch
    given: Any  # the ForwardBatch

    def claims(self, part: Part | None) -> Claims | None:
        divided = any(getattr(self.given, name, None) is not None for name in DIVIDED)
        return None if divided else self.batch.claims(part)


def step(arguments: Mapping[str, Any]) -> SglangStep | None:
    """The batch of a call of `ModelRunner.forward`; None if nothing is known of its requests."""
    runner, given = arguments["self"], arguments["forward_batch"]
    requests, mode = given.rids, given.forward_mode
    if getattr(runner, "is_draft_worker", False) or not requests or given.positions is None:
        return None
    count = len(requests)
    offsets: Sequence[int] | None
    if mode.is_target_verify():
        tokens = getattr(given.spec_info, "draft_token_num", None)
        if tokens is None or getattr(given.spec_info, "ragged_verify_layout", None) is not None:
            return None
        offsets = range(0, (count + 1) * tokens, tokens)
        positions = given.positions[: count * tokens : tokens]
    elif mode.is_decode():
        offsets, positions = range(count + 1), given.positions[:count]
    elif mode.is_extend() and not _rewrites(mode) and given.extend_prefix_lens is not None:
        lengths = given.extend_seq_lens_cpu
        offsets = None if lengths is None else [0, *accumulate(lengths[:count])]
        positions = given.extend_prefix_lens[:count]
    else:
        return None
    if len(positions) < count:
        return None
    batch = Batch(
        tuple(requests),
        positions.clone(),
        offsets=offsets,
        token_positions=given.positions,
        elsewhere=_writes_elsewhere(runner, given),
    )
    return SglangStep(batch, given)


def _rewrites(mode: Any) -> bool:
    asked = getattr(mode, "is_dllm_extend", None)
    return asked is not None and bool(asked())


def _writes_elsewhere(runner: Any, given: Any) -> bool:
    """Whether states also come to slots in other ways than by recorded calls, commits of verified drafts and
    copies of what those wrote."""
    if getattr(given, "mamba_track_indices", None) is not None:
        return True
    pool = getattr(runner, "req_to_token_pool", None)
    if getattr(pool, "mamba_ckpt_pool", None) is not None:
        return True
    # Compressed rows come and go between the host and slots of the device.
    if getattr(runner, "hisparse_coordinator", None) is not None:
        return True
    arguments = getattr(runner, "server_args", None)
    return getattr(arguments, "disaggregation_mode", "null") != "null"


def slots_of_the_step(sequences: int, given: Tensor | None) -> Tensor | None:
    """The pool's rows of the sequences of a prefill: the running step's. `given` are those of the call, which
    may be rows of a copy of the pool; they are taken outside a step."""
    context = sys.modules.get(CONTEXT)
    if context is None or not context.has_forward_context():
        return given
    backend = context.get_attn_backend()
    linear = getattr(backend, "linear_attn_backend", backend)
    found: Tensor | None = getattr(getattr(linear, "forward_metadata", None), "mamba_cache_indices", None)
    return found if found is not None and len(found) >= sequences else given
