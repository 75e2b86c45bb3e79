# SPDX-License-Identifier: Apache-2.0
"""Rules for single tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gdnbench.errors import BadInputError
from gdnbench.judge.result import TensorResult
from gdnbench.judge.rule import Bound, Rule, describe_rule, rule_options
from gdnbench.near_names import nearest_first
from gdnbench.ops import operations
from gdnbench_kernels.contract import Role


@dataclass(frozen=True, slots=True)
class ByTensor:
    """`rule` for all tensors except those in `tensors`, named OPERATION.TENSOR or, for any operation,
    TENSOR."""

    rule: Rule
    tensors: Mapping[str, Rule]

    def rule_of(self, operation: str, tensor: str) -> Rule:
        """The rule of one tensor; OPERATION.TENSOR takes precedence."""
        return self.tensors.get(f"{operation}.{tensor}") or self.tensors.get(tensor) or self.rule

    def pick(
        self, operation: str, judge: Callable[[Rule], Sequence[TensorResult]]
    ) -> tuple[TensorResult, ...]:
        """Each tensor's result under its own rule, in the order in which `judge` returns them under
        `rule`."""
        # By identity, because a rule with factors by name is not hashable.
        under = {id(self.rule): tuple(judge(self.rule))}
        found: list[TensorResult] = []
        for name in dict.fromkeys(result.tensor for result in under[id(self.rule)]):
            rule = self.rule_of(operation, name)
            if id(rule) not in under:
                under[id(rule)] = tuple(judge(rule))
            found += [result for result in under[id(rule)] if result.tensor == name]
        return tuple(found)


def with_rules(rule: Rule, tensors: Mapping[str, Rule] | None) -> Rule | ByTensor:
    """`rule`, combined with rules of single tensors if there are any. BadInputError for an unknown tensor."""
    for name in tensors or ():
        check_tensor(name)
    return ByTensor(rule, tensors) if tensors else rule


def check_tensor(name: str) -> None:
    """BadInputError if no operation has an output or stage named TENSOR or OPERATION.TENSOR."""
    there = {
        op.name: (
            *(spec.name for spec in op.tensors if spec.role is not Role.INPUT),
            *(stage.tensor.name for stage in op.stages),
        )
        for op in operations().values()
    }
    of_operation = {f"{op}.{tensor}" for op, tensors in there.items() for tensor in tensors}
    alone = {tensor for tensors in there.values() for tensor in tensors}
    if name not in of_operation | alone:
        known = nearest_first(name, sorted(_of_nearest(name, there) if "." in name else alone))
        raise BadInputError(f"rule of {name!r}: no such output or stage; there are {known}")


def _of_nearest(name: str, there: Mapping[str, Iterable[str]]) -> list[str]:
    """The tensors of the operation whose name is nearest to that in `name`, as OPERATION.TENSOR."""
    op = nearest_first(name.partition(".")[0], there).partition(",")[0]
    return [f"{op}.{tensor}" for tensor in there[op]]


def describe_rules(rule: Rule | ByTensor) -> str:
    """A rule in words, for reports."""
    if not isinstance(rule, ByTensor):
        return describe_rule(rule)
    others = (f"; {name}: {describe_rule(one)}" for name, one in rule.tensors.items())
    return describe_rule(rule.rule) + "".join(others)


def replay_options_of(words: str) -> list[str] | None:
    """The options of `gdnbench replay` for the rule that `describe_rules` wrote as `words`; None if it did
    not write them."""
    first, *others = words.split("; ")
    found = rule_options(first)
    for other in others:
        name, _, rule = other.partition(": ")
        asked = rule_options(rule)
        if found is None or asked is None:
            return None
        kind, *value = asked or ("--k", f"{Bound().k:g}")
        found += ["--rule", f"{name}={':'.join((kind.removeprefix('--'), *value))}"]
    return found
