# SPDX-License-Identifier: Apache-2.0
"""Calls of swa_decode for the tests of its compiled kernels, which run in the simulator and are judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.row_source import Memory
from gdnbench.judge.rule import Bound
from gdnbench.judge.tensor import Subject, judge, judge_against_target
from gdnbench.record import When
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active
from gdnbench_kernels.contract import Call
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.swa_decode.contract import OPERATION, flat_of
from gdnbench_kernels.swa_decode.layouts import ds_mla_parts, empty_ds_mla
from gdnbench_kernels.swa_decode.synth import synth
from gdnbench_kernels.swa_decode.window import attended
from tests.kernels.guarded_outputs import same as same
from tests.kernels.guarded_outputs import same_outputs as same_outputs
from tests.seeds import drawn, fresh

Outputs = dict[str, Tensor]

PER_TOKEN, DS_MLA = "per_token_scale", "fp8_ds_mla"
LAYOUTS = (PER_TOKEN, DS_MLA)
LENS = (128, 0, 17, 1, 127)
FRESH = drawn("swa", 20)
FRESH_SCHEDULE = fresh(f"random:{FRESH}")
"""By a name that is the same in every process that runs tests."""
GUARD = 64
"""Elements before and after an output that nobody may write; a multiple of the alignment in any dtype."""
CODE_NAN, SCALE_NAN = 0x7F, 0xFF

CALLS: dict[str, dict[str, Any]] = {
    "holes": {"holes": 0.25},
    "nothing but holes": {"holes": 1.0, "lens": (128, 3)},
    "a huge sink": {"sink": 1e6},
    "a sink of -inf": {"sink": -torch.inf},
    "a sink of +inf": {"sink": torch.inf},
    "scores spread over 1e4": {"spread": 1e4, "holes": 0.1},
    "scores spread over 1e4, a sink among them": {"spread": 1e4, "sink": 1e3},
    "magnitudes over 2^10": {"scale_range": 1024.0},
    "a negative scale": {"scale": -0.1},
    "pages of 16, one request": {"lens": (128,), "block_size": 16},
    "pages of 256, a window of 100": {"lens": (100, 3), "window": 100, "block_size": 256},
    "T1W, one page for all": {"index_shape": "T1W", "shared_page": True, "lens": (128, 0, 64)},
    "1TW, as many requests as heads": {"index_shape": "1TW", "lens": (128, 31) * 4},
}
"""Of 8 heads."""


def made(**options: Any) -> Call:
    """With few heads, a sink and lse unless told: one build of each layout serves most tests."""
    call = synth(**{"lens": LENS, "heads": 8, "sink": 0.0, "seed": FRESH, **options})
    OPERATION.validate(call)
    print(f"seed {FRESH}")  # which pytest shows of a test that fails
    return call


def run(kernel: Callable[..., Outputs], call: Call, options: dict[str, Any], **settings: Any) -> Outputs:
    """What `kernel` makes of the call with `options`; outputs are poisoned and guarded, and the inputs are as
    they were."""
    whole, outputs = {}, {}
    for name, (shape, dtype) in OPERATION.outputs(call).items():
        whole[name] = torch.full((2 * GUARD + torch.Size(shape).numel(),), torch.nan, dtype=dtype)
        outputs[name] = whole[name][GUARD:-GUARD].view(shape)
    before = {name: tensor.clone() for name, tensor in call.tensors.items()}
    with active(Settings(**settings)) as session, programs_simulated():
        returned = kernel(**call.tensors, **call.scalars, **call.conventions, **outputs, **options)
    assert returned.keys() == outputs.keys()
    assert all(returned[name] is outputs[name] for name in outputs)
    assert all(same(call.tensors[name], before[name]) for name in before)
    for tensor in whole.values():
        assert tensor[:GUARD].isnan().all()
        assert tensor[-GUARD:].isnan().all()
    assert [finding for report in session.reports for finding in report.findings] == []
    return outputs


def assert_passes(call: Call, outputs: Outputs) -> None:
    """o within twice torch's error, lse within its tolerance; zeros and -inf where nothing is attended to."""
    oracle, torchs = (run_kernel(OPERATION, kernel, call) for kernel in ("reference", "torch"))
    for name, tensor in outputs.items():
        subject = Subject(name, When.AFTER, OPERATION.partition(call, name), OPERATION.spec(name).axes)
        held = OPERATION.tolerances.get(name)
        if held is None:
            result = judge(subject, tensor, oracle[name], torchs[name], Bound())
        else:
            tolerance = Tolerance(held.absolute, held.relative)
            result = judge_against_target(subject, Memory(tensor), Memory(oracle[name]), tolerance)
        assert result.reasons == (), name
    nothing = ~attended(flat_of(call), call.tensors["swa_lens"]).any(1)
    assert (outputs["o"][nothing] == 0).all()
    if "lse" in outputs:
        assert (outputs["lse"][nothing] == -torch.inf).all()


def with_tensors(call: Call, **tensors: Tensor) -> Call:
    return replace(call, tensors={**call.tensors, **tensors})


def request_of(call: Call, row: int) -> Call:
    """One request of the call."""
    return with_tensors(
        call,
        q=call.tensors["q"][row : row + 1],
        swa_indices=flat_of(call)[row : row + 1],
        swa_lens=call.tensors["swa_lens"][row : row + 1],
    )


def with_stale_entries(call: Call) -> Call:
    """Entries past a row's length name a slot that holds NaN, which is a read that the simulator would let
    pass."""
    indices, lens, cache = flat_of(call).clone(), call.tensors["swa_lens"], call.tensors["cache"]
    free = torch.ones(cache.shape[0] * cache.shape[1], dtype=torch.bool)
    free[indices[attended(indices, lens)].long()] = False
    indices[torch.arange(indices.shape[1]) >= lens.unsqueeze(1)] = int(free.nonzero()[0])
    return with_tensors(call, swa_indices=indices)


def with_pages_apart(call: Call) -> Call:
    """Pages 48 bytes further apart, with NaN between them."""
    cache = call.tensors["cache"]
    blocks, block_size, width = cache.shape
    stride = cache.stride(0) + 48
    memory = torch.full((blocks * stride,), CODE_NAN, dtype=torch.uint8)
    apart = memory.as_strided((blocks, block_size, width), (stride, width, 1))
    apart.copy_(cache.view(torch.uint8))
    return with_tensors(call, cache=apart)


def assert_heads_do_not_meet(run: Callable[[Call], Outputs], mixed: tuple[Call, Outputs], q: Tensor) -> None:
    """With queries `q`, not finite in head 3 alone, nor are its outputs, and the others' are as they were."""
    call, outputs = mixed
    found = run(with_tensors(call, q=q))
    some = attended(flat_of(call), call.tensors["swa_lens"]).any(1)
    others = [head for head in range(q.shape[1]) if head != 3]
    for name, tensor in found.items():
        assert same(tensor[:, others], outputs[name][:, others])
        assert not tensor[some, 3].isfinite().any()
        assert same(tensor[~some, 3], outputs[name][~some, 3])


def assert_spoils_its_own(run: Callable[[Call], Outputs], mixed: tuple[Call, Outputs], what: str) -> None:
    """A NaN in a code, a scale or rope shows in the requests that attend to its slot, and in no other."""
    call, outputs = mixed
    changed, hit = spoilt(call, what)
    assert hit.any()
    assert not hit.all()
    for name, tensor in run(changed).items():
        assert same(tensor[~hit], outputs[name][~hit])
        assert tensor[hit].isnan().all()


def copied(cache: Tensor, layout: str) -> Tensor:
    """A copy, pages as far apart."""
    if layout == PER_TOKEN:
        return cache.clone()
    copy = empty_ds_mla(*cache.shape[:2])
    copy.copy_(cache)
    return copy


def spoilt(call: Call, what: str) -> tuple[Call, Tensor]:
    """The call with a NaN in the first request's window, in a code, a scale or rope, or with a scale that is
    infinite, which only per_token_scale has; which requests attend to that slot, bool [T]."""
    layout, cache = call.conventions["cache_layout"], call.tensors["cache"]
    indices = flat_of(call)
    counts = attended(indices, call.tensors["swa_lens"])
    slot = int(indices[0][counts[0]][5])
    block, offset = divmod(slot, cache.shape[1])
    changed = {"cache": copied(cache, layout)}
    data, scales = (changed["cache"].view(torch.uint8),) * 2
    if layout == DS_MLA:
        data, scales = ds_mla_parts(changed["cache"])
    if what == "code":
        data[block, offset, 7] = CODE_NAN
    elif what == "rope":
        data[block, offset, -3:] = SCALE_NAN
    elif layout == DS_MLA:
        scales[block, offset, 2] = SCALE_NAN
    else:
        changed["inv_scale"] = call.tensors["inv_scale"].clone()
        changed["inv_scale"][slot] = torch.inf if what == "infinite scale" else torch.nan
    return with_tensors(call, **changed), (counts & (indices == slot)).any(1)
