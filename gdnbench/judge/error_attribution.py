# SPDX-License-Identifier: Apache-2.0
"""Separates the error that each stage of a kernel adds from the error that it inherits from earlier stages.

For a stage s, let x be the kernel's result, y the exact one (all in fp64), and e the exact step applied to
the kernel's own earlier stages:

    inherited = rms(e - y)     incoming error, propagated by exact arithmetic
    added     = rms(x - e)     error that the kernel makes in this step
    error     = rms(x - y)     both; they may cancel: error <= added + inherited

For a stage that the kernel does not expose, later steps use e itself, so that its error counts as added by
the next exposed stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench.judge.stages import STAGED_ORACLE, in_named_dtype
from gdnbench_kernels.contract import Call, Operation, Partition
from gdnbench_kernels.run import run_step


@dataclass(frozen=True, slots=True)
class StageShare:
    """One stage or output. RMS over the `count` elements that are finite in x, e and y; NaN if there are
    none.

    `reference` is rms(y); `step` names the exact step that computes the stage.
    """

    stage: str
    step: str
    count: int
    error: float
    added: float
    inherited: float
    reference: float


def attribute_errors(
    operation: Operation, call: Call, shown: Mapping[str, Tensor], oracle: Mapping[str, Tensor]
) -> tuple[StageShare, ...] | None:
    """The shares of the stages and outputs `shown`, in the order in which they are computed.

    `call` is the kernel's input and `shown` its results, in the call's conventions; `oracle` has the exact
    stages and outputs of `stage_call(call)`. None for an operation whose oracle has no steps. A tensor of
    another shape than the oracle's counts as not shown.
    """
    entry = operation.kernels.get(STAGED_ORACLE)
    if entry is None or not entry.steps:
        return None
    exact_call = operation.stage_call(call)
    own: dict[str, Tensor] = {}
    found = []
    for number, step in enumerate(entry.steps):
        made = run_step(operation, step, exact_call, {name: own[name] for name in step.takes})
        own |= made
        for name, exact in made.items():
            kernels, true = shown.get(name), oracle.get(name)
            if kernels is None or true is None or kernels.shape != true.shape:
                continue
            partition = operation.partition(call, name)
            kernels = in_named_dtype(operation, name, kernels)
            own[name] = put_counted(kernels, exact, partition)  # for later steps
            found.append(_share(name, step.name, own[name].cpu(), exact.cpu(), true.cpu(), partition))
        taken = {name for later in entry.steps[number + 1 :] for name in later.takes}
        own = {name: tensor for name, tensor in own.items() if name in taken}  # in fp64 they are large
    return tuple(found)


def put_counted(tensor: Tensor, elsewhere: Tensor, partition: Partition) -> Tensor:
    """The elements of `tensor` where they count, those of `elsewhere` in the other places, in its dtype.

    Elements of a stage outside the regions are undefined; a NaN there would spread through its whole chunk.
    """
    found = elsewhere.clone()
    for region in partition.regions:
        part: tuple[slice, ...] = (slice(region.start, region.stop),)
        if region.tokens is not None:  # [1, Hv, C, ...]
            part = (*part, slice(None), slice(region.tokens))
        found[part] = tensor[part].to(found)
    return found


def _share(
    stage: str, step: str, kernels: Tensor, exact: Tensor, oracle: Tensor, partition: Partition
) -> StageShare:
    count, squares = 0, torch.zeros(4, dtype=torch.float64)
    for region in partition.regions:
        part = torch.stack([one[region.start : region.stop].double() for one in (kernels, exact, oracle)])
        if region.tokens is not None:  # [1, Hv, C, ...]
            part = part[:, :, :, : region.tokens]
        finite = torch.isfinite(part).all(dim=0)
        x, e, y = part[:, finite]
        count += x.numel()
        squares += torch.stack([one.square().sum() for one in (x - y, x - e, e - y, y)])
    error, added, inherited, reference = (
        math.sqrt(float(one) / count) if count else math.nan for one in squares
    )
    return StageShare(stage, step, count, error, added, inherited, reference)
