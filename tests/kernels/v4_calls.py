# SPDX-License-Identifier: Apache-2.0
"""Calls of v4_decode for the tests of its compiled kernels, which run in the simulator and are judged."""

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
from gdnbench.sim import Settings, Severity, active
from gdnbench_kernels.contract import Call
from gdnbench_kernels.latent_pool import WINDOW
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.shrinking import select_units
from gdnbench_kernels.swa_decode.layouts import ds_mla_parts
from gdnbench_kernels.v4_decode.contract import OPERATION
from gdnbench_kernels.v4_decode.segments import EXTRA, segments_of
from tests.kernels.swa_calls import CODE_NAN, DS_MLA, GUARD, SCALE_NAN, same
from tests.seeds import drawn

Outputs = dict[str, Tensor]

FRESH = drawn("v4", 20)
POOLS = {"window": WINDOW, "extra": EXTRA}


def made(**options: Any) -> Call:
    """8 heads, a sink, lse and fp8_ds_mla unless told: one build serves most tests. No window, no extra
    entries, nothing at all, and tiles of both that are full, almost empty, and of 64."""
    call = OPERATION.synth(
        **{
            "lens": (128, 17, 0, 0, 1),
            "extra_lens": (300, 0, 64, 0, 129),
            "topk": 300,
            "heads": 8,
            "cache_layout": DS_MLA,
            "extra_layout": DS_MLA,
            "sink": 0.0,
            "seed": FRESH,
            **options,
        }
    )
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
    found = [finding for report in session.reports for finding in report.findings]
    assert [finding for finding in found if finding.severity is not Severity.NOTE] == []
    return outputs


def assert_passes(call: Call, outputs: Outputs) -> None:
    """o within twice torch's error, lse within its tolerance; zeros where nothing is attended to."""
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
    nothing = ~attends(call)
    assert (outputs["o"][nothing] == 0).all()


def attends(call: Call) -> Tensor:
    """[B, S], whether a query attends to anything, bool."""
    segments = segments_of(call.tensors, call.conventions)
    some = torch.stack([one.counts.any(1) for one in segments]).any(0)
    return some.view(call.tensors["q"].shape[:2])


def with_tensors(call: Call, **tensors: Tensor) -> Call:
    return replace(call, tensors={**call.tensors, **tensors})


def request_of(call: Call, row: int) -> Call:
    """One request of the call."""
    queries = call.tensors["q"].shape[1]
    rows = list(range(row * queries, (row + 1) * queries))
    return with_tensors(call, **select_units(call, OPERATION.tensors, {"B": [row], "T": rows}))


def spoilt(call: Call, pool: str, what: str) -> tuple[Call, Tensor]:
    """The fp8_ds_mla call with a NaN in a code, a scale or rope of the first request's last entry in the
    window or the extra segment; which queries attend to that slot, bool [B, S]."""
    names = POOLS[pool]
    one = next(segment for segment in segments_of(call.tensors, call.conventions) if segment.names is names)
    slot = int(one.slots[0][one.counts[0]][-1])
    block, offset = divmod(slot, one.block_size)
    cache = one.cache
    copy = torch.empty_strided(cache.shape, cache.stride(), dtype=cache.dtype)
    for new, old in zip(ds_mla_parts(copy), ds_mla_parts(cache), strict=True):
        new.copy_(old)
    data, scales = ds_mla_parts(copy)
    if what == "code":
        data[block, offset, 7] = CODE_NAN
    elif what == "rope":
        data[block, offset, -3:] = SCALE_NAN
    else:
        scales[block, offset, 2] = SCALE_NAN
    hit = (one.counts & (one.slots == slot)).any(1).view(call.tensors["q"].shape[:2])
    return with_tensors(call, **{names.cache: copy}), hit
