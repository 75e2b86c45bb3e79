# SPDX-License-Identifier: Apache-2.0
"""One record under one kernel: its call, its exact stages, and the judgement of stages and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench.bisect.stage.chain import chain_of
from gdnbench.bisect.stage.place import as_facts
from gdnbench.judge import calls
from gdnbench.judge.record import ORACLE, YARDSTICK, Judge, run_as_handed, subject_of
from gdnbench.judge.result import TensorResult
from gdnbench.judge.rule import Bound, Rule
from gdnbench.judge.stages import (
    STAGED_ORACLE,
    in_named_dtype,
    judge_against_exact,
    judge_stage,
    stage_subject,
)
from gdnbench.replay import bind
from gdnbench.replay.call import conversion
from gdnbench.replay.execute import device_of
from gdnbench.replay.kernels import LoadedKernel
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, Operation, Role


@dataclass(frozen=True, slots=True)
class RecordUnderKernel:
    """A record under one kernel. Stages are judged by `bound`, outputs by `rule`."""

    record: StoredRecord
    operation: Operation
    kernel: LoadedKernel
    on: str
    bound: Bound
    rule: Rule
    judge: Judge
    """Of the outputs, by `rule`; it keeps the results of oracle and torch."""

    def exact_call(self) -> Call:
        """As the caller made it, in conventions that the kernel takes, where the kernel runs. What steps
        change in place they get copies of: pools are then of the stored slots alone."""
        if any(spec.role is Role.MUTATED for spec in self.operation.tensors):
            return self.given()
        made = bind.exact(self.record, self.operation, device_of(self.on)).call
        return self.operation.convert(made, conversion(made, self.operation, self.kernel).target)

    def given(self) -> Call:
        """The same, contiguous: what oracle and yardstick get."""
        compact = calls.compact_call(self.record, self.operation, device_of(self.on))
        return self.operation.convert(compact, conversion(compact, self.operation, self.kernel).target)

    def stages(self) -> list[str]:
        return [stage.tensor.name for stage in self.operation.stages]

    def exact(self, given: Call, taken: Mapping[str, Tensor], wanted: Iterable[str]) -> dict[str, Tensor]:
        """Stages and outputs `wanted` by exact steps, from the stages `taken` where a step takes one of them;
        fp64, in the conventions of `given`."""
        return chain_of(STAGED_ORACLE, self.operation, self.operation.stage_call(given), taken, wanted)

    def as_recorded(self, outputs: Mapping[str, Tensor], conventions: Mapping[str, str]) -> dict[str, Tensor]:
        """Outputs in the conventions of the record, from those `conventions`."""
        recorded = calls.conventions_of(self.record, self.operation)
        return self.operation.convert_outputs(outputs, conventions, recorded)

    def judged_step(
        self, given: Call, taken: Mapping[str, Tensor], made: Mapping[str, Tensor]
    ) -> list[dict[str, Any]]:
        """What a step made, against fp64 and torch's step on the very stages that it took."""
        op = self.operation
        oracle = self.exact(given, taken, made)
        yardstick = chain_of(YARDSTICK, op, given, taken, made)
        facts, stages = [], self.stages()
        for name, tensor in made.items():
            subject = stage_subject(op, given, name)
            held = in_named_dtype(op, name, tensor)
            if name in stages or isinstance(self.rule, Bound):
                limit = op.stage_limit(given, name)
                leeway = partial(self._leeway, given, name, taken)
                result = judge_stage(subject, held, oracle[name], yardstick[name], self.bound, limit, leeway)
            else:
                result = judge_against_exact(subject, held, oracle[name], self.rule)
            facts.append(as_facts(replace(result, stage=name in stages), subject, held, oracle[name]))
        return facts

    def _leeway(self, given: Call, name: str, taken: Mapping[str, Tensor]) -> Tensor | None:
        exact = self.exact(given, taken, self.stages())
        return self.operation.stage_leeway(given, name, exact)

    def judged_results(self, outputs: Mapping[str, Tensor]) -> list[TensorResult]:
        """Outputs in the record's conventions, judged as those of any kernel."""
        found = self.judge.tensors(self.record, self.operation, outputs, None, handed=self._handed())
        return [result for result in found if result.tensor in outputs and result.judged]

    def judged_outputs(self, outputs: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """The same as facts."""
        compact = calls.compact_call(self.record, self.operation, device_of(self.on))
        oracle = on_cpu(run_as_handed(self.operation, ORACLE, compact, self._handed()))
        return [
            as_facts(
                result,
                subject_of(self.record, self.operation, compact, result.tensor),
                outputs[result.tensor],
                oracle[result.tensor],
            )
            for result in self.judged_results(outputs)
        ]

    def _handed(self) -> Mapping[str, str]:
        compact = calls.compact_call(self.record, self.operation, device_of(self.on))
        return conversion(compact, self.operation, self.kernel).target


def as_dtype(exact: Tensor, dtype: str) -> Tensor:
    return exact.to(getattr(torch, dtype))


def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}
