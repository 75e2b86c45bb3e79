# SPDX-License-Identifier: Apache-2.0
"""Kernels with planted faults, each of a smallest call that test_input.py knows, and right ones."""

import inspect
import random
from itertools import pairwise

from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent
from gdnbench_kernels.gdn_prefill.torch_chunked import torch_chunked
from gdnbench_kernels.swa_decode.torch_paged import torch_paged


def answer(kernel, call):
    names = inspect.signature(kernel).parameters
    return kernel(**{name: call[name] for name in names if name in call})


def requests_of(call):
    """Of each request its slots and how many of them count."""
    return zip(call["swa_indices"].tolist(), call["swa_lens"].tolist(), strict=True)


def right(**call):
    return answer(torch_chunked, call)


def by_place(**call):
    """Wrong in value head 5 of sequence 2, in its second chunk."""
    found, bounds, size = answer(torch_chunked, call), call["cu_seqlens"].tolist(), call["chunk_size"]
    if len(bounds) > 3 and call["v"].shape[1] > 5:
        begin = bounds[2] + size
        found["o"][begin : max(begin, min(begin + size, bounds[3])), 5] *= 2
    return found


def by_value(**call):
    """Wrong in the rest of a sequence's chunk after a token whose beta is 1."""
    found, bounds = answer(torch_chunked, call), call["cu_seqlens"].tolist()
    for begin, end in pairwise(bounds):
        for token, head in (call["beta"][begin:end] == 1).nonzero().tolist():
            found["o"][begin + token : min(end, begin + (token // 64 + 1) * 64), head] *= 2
    return found


def empty_sequence(**call):
    if (call["cu_seqlens"].diff() == 0).any():
        raise IndexError("no chunk 0")
    return answer(torch_chunked, call)


def tail_load(**call):
    """Load all 64 rows of a sequence's last chunk, and multiply those of the next sequence by zero."""
    found, bounds = answer(torch_chunked, call), call["cu_seqlens"].tolist()
    for begin, end in pairwise(bounds):
        if end > begin:
            last = begin + (end - begin - 1) // 64 * 64
            found["o"][last:end] += 0 * call["v"][end : last + 64].sum(0)
    return found


def finite(**call):
    """Takes a NaN for a zero."""
    names = ("q", "k", "v", "g", "beta")
    return answer(torch_chunked, {**call, **{name: call[name].nan_to_num() for name in names}})


def wide(**call):
    found = answer(torch_chunked, call)
    return {**found, "o": found["o"].float()}


def ends(**call):
    if call["v"].shape[1] > 1:
        raise SystemExit(3)
    return answer(torch_chunked, call)


def endless(**call):
    """lse of a request without entries is -inf."""
    found = answer(torch_paged, call)
    if "lse" in found:
        found["lse"] = found["lse"].clamp(min=-1e4)
    return found


def stage(*, stages=None, **call):
    given = {name: call[name] for name in ("q", "k", "v", "g", "beta", "cu_seqlens")}
    found = torch_chunked(**given, stages=stages)
    if stages is not None:
        stages["P"] = stages["P"] * 1.5
    return found


def flaky(**call):
    found = answer(torch_chunked, call)
    found["o"] *= random.uniform(1.5, 2)
    return found


def hole(**call):
    """A slot of -1 counts from the end, as an index does."""
    found = answer(torch_recurrent, call)
    if (call["state_indices"] == -1).any():
        call["state"][-1] = 1
    return found


def far(**call):
    """Wrong for slots from 50 on."""
    found = answer(torch_recurrent, call)
    found["o"][call["state_indices"][:, 0] >= 50] *= 2
    return found


def far_page(**call):
    found = answer(torch_paged, call)
    size = call["cache"].shape[1]
    for request, (slots, count) in enumerate(requests_of(call)):
        if any(0 <= slot // size == 7 for slot in slots[:count]):
            found["o"][request] += 1
    return found


def apart(**call):
    """Takes the pool to be contiguous."""
    pool = call["state"]
    if not pool.is_contiguous():
        call = {**call, "q": -call["q"]}
    return answer(torch_recurrent, call)


def second_step(**call):
    found = answer(torch_recurrent, call)
    if "num_accepted" in call:
        found["o"][:, 1:][call["num_accepted"] == 2] *= 2
    return found


def shared_page(**call):
    """Wrong where a page is attended to by two requests."""
    found = answer(torch_paged, call)
    size, owner = call["cache"].shape[1], {}
    for request, (slots, count) in enumerate(requests_of(call)):
        for slot in slots[:count]:
            if slot != -1 and owner.setdefault(slot // size, request) != request:
                found["o"][request] += 1
    return found


def right_decode(**call):
    return answer(torch_recurrent, call)


def right_window(**call):
    return answer(torch_paged, call)


LAYOUTS = ("per_token_scale", "fp8_ds_mla", "bfloat16")
right_window.conventions = shared_page.conventions = endless.conventions = {"cache_layout": LAYOUTS}
