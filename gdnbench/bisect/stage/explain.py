# SPDX-License-Identifier: Apache-2.0
"""Which stage explains that the outputs are wrong, from the stages and outputs of one run.

Let x be the kernel's result for a stage, and O_s the outputs that exact steps compute from the kernel's own
stages up to s, in the order of the contract, with exact values of the stages that the kernel does not show.
Two questions are asked of each stage, without running the kernel again:

- What does it add? x is compared with the exact step on the kernel's own earlier stages, and may differ by k
  times the error of torch's step on the same stages, and the stage's limit.
- How far does its error carry? O_s is judged as an output of the kernel is. If it fails, no later arithmetic
  could have made the outputs right: the errors up to s suffice to explain theirs. If it passes, exact steps
  after s would have made them right: the errors up to s do not explain it, however many ULP they are.

The first stage that adds more than it may, and from which on O_s fails, explains the outputs' error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from gdnbench.bisect.stage.one_record import RecordUnderKernel
from gdnbench.judge.error_attribution import put_counted
from gdnbench.judge.record import compared_tensors
from gdnbench.judge.stages import STAGED_ORACLE, in_named_dtype
from gdnbench_kernels.contract import Call, Operation, Step


def exact_steps(operation: Operation) -> tuple[Step, ...]:
    """The steps of the oracle; empty for an operation whose oracle has none."""
    entry = operation.kernels.get(STAGED_ORACLE)
    return () if entry is None else entry.steps


def own_stages(
    one: RecordUnderKernel, given: Call, shown: Mapping[str, Tensor], oracle: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The stages that a kernel shows, in its dtypes, with exact values in the elements that belong to no
    token: a step may read them."""
    return {
        name: put_counted(tensor, oracle[name], one.operation.partition(given, name)).to(tensor.dtype)
        for name, tensor in shown.items()
        if tensor.is_floating_point() and tensor.shape == oracle[name].shape
    }


def added_errors(
    one: RecordUnderKernel, given: Call, own: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """Facts of the stages `own` and of the outputs, in the conventions of `given`, each against the exact
    step on the kernel's own earlier stages."""
    facts: list[dict[str, Any]] = []
    before: dict[str, Tensor] = {}
    for step in exact_steps(one.operation):
        made = {name: {**own, **outputs}[name] for name in step.gives if name in own or name in outputs}
        facts += one.judged_step(given, before, made) if made else []
        before |= {name: own[name] for name in step.gives if name in own}
    return facts


def carried_errors(
    one: RecordUnderKernel,
    given: Call,
    own: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    failing: Iterable[str],
) -> dict[str, dict[str, Any]]:
    """By stage s of `own` from which an output can be computed: whether O_s passes in the outputs `failing`
    of the kernel, the first reason if not, and the largest error over its limit. `outputs` have the dtypes
    that the kernel leaves."""
    wanted = compared_tensors(one.operation, given)
    found: dict[str, dict[str, Any]] = {}
    until: dict[str, Tensor] = {}
    for name in one.stages():
        if name not in own:
            continue
        until[name] = in_named_dtype(one.operation, name, own[name])
        if not reaches(exact_steps(one.operation), name, wanted):
            continue
        made = one.exact(given, until, wanted)
        carried = {
            each: made[each].to(outputs[each].dtype) for each in wanted if each in made and each in outputs
        }
        results = one.judged_results(one.as_recorded(carried, given.conventions))
        counted = [result for result in results if result.tensor in failing]
        reasons = [f"{result.tensor}: {result.reasons[0]}" for result in counted if result.reasons]
        ratios = [held.ratio for result in counted for held in result.held]
        found[name] = {
            "passed": not reasons,
            "reason": reasons[0] if reasons else "",
            "ratio": max(ratios, default=0.0),
        }
    return found


def reaches(steps: Sequence[Step], stage: str, outputs: Iterable[str]) -> bool:
    """Whether steps after the one that gives `stage` compute one of `outputs` from it."""
    names = {stage}
    for step in steps:
        if names & set(step.takes):
            names |= set(step.gives)
    return bool((names - {stage}) & set(outputs))


def hidden_stages(operation: Operation, stage: str, shown: Iterable[str]) -> list[str]:
    """The stages that are not shown and from which exact steps compute `stage`: their error counts as that of
    `stage`."""
    makers = {name: step for step in exact_steps(operation) for name in step.gives}
    there, found = set(shown), set[str]()
    pending = list(makers[stage].takes) if stage in makers else []
    while pending:
        name = pending.pop()
        if name not in there and name not in found:
            found.add(name)
            pending += makers[name].takes
    return [one.tensor.name for one in operation.stages if one.tensor.name in found]
