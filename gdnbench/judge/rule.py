# SPDX-License-Identifier: Apache-2.0
"""The rules by which a tensor can be judged: bound, tolerance, bitwise."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gdnbench.errors import BadInputError
from gdnbench.judge.block_stats import Tolerance
from gdnbench.ops import operations
from gdnbench_kernels.contract import Role


@dataclass(frozen=True, slots=True)
class Bound:
    """At most `k` times the error of torch's kernel, plus the floor; `by_tensor` overrides k by name."""

    k: float = 2.0
    by_tensor: Mapping[str, float] = field(default_factory=dict)

    def factor(self, tensor: str) -> float:
        return self.by_tensor.get(tensor, self.k)


@dataclass(frozen=True, slots=True)
class Bitwise:
    """Every bit equal, except that any NaN equals any NaN."""


Rule = Bound | Bitwise | Tolerance


def make_rule(
    k: float | None = None,
    k_by_tensor: Mapping[str, float] | None = None,
    tol: tuple[float, float] | None = None,
    bitwise: bool = False,
) -> Rule:
    """The rule that the options define; BadInputError if they contradict each other or are invalid."""
    by_tensor = dict(k_by_tensor or {})
    if bitwise and tol is not None:
        raise BadInputError("choose one of bitwise and tol, not both")
    if (bitwise or tol is not None) and (k is not None or by_tensor):
        raise BadInputError("k multiplies torch's error, which is not looked at bitwise or with tol")
    if bitwise:
        return Bitwise()
    if tol is not None:
        if not all(map(math.isfinite, tol)):
            raise BadInputError(f"tol {tol[0]:g}, {tol[1]:g} is not finite; give numbers of 0 or more")
        if not (tol[0] >= 0 and tol[1] >= 0):
            raise BadInputError(f"tol {tol[0]:g}, {tol[1]:g} must not be negative")
        return Tolerance(*tol)
    for factor in (*by_tensor.values(), *(() if k is None else (k,))):
        if not math.isfinite(factor):
            raise BadInputError(f"k {factor:g} is not finite; give a number of 0 or more")
        if not factor >= 0:
            raise BadInputError(f"k {factor:g} must not be negative")
    there = {spec.name for op in operations().values() for spec in op.tensors if spec.role is not Role.INPUT}
    for name in by_tensor:
        if name not in there:
            raise BadInputError(f"k of {name!r}: no such output; there are {', '.join(sorted(there))}")
    return Bound(by_tensor=by_tensor) if k is None else Bound(k, by_tensor)


def describe_rule(rule: Rule) -> str:
    """A rule in words, for reports."""
    if isinstance(rule, Bitwise):
        return "bitwise"
    if isinstance(rule, Tolerance):
        return f"|x - y| <= {rule.abs:g} + {rule.rel:g} |y|"
    others = "".join(f", {k:g} x for {name}" for name, k in rule.by_tensor.items())
    return f"error <= {rule.k:g} x torch's + rounding{others}"


def rule_options(words: str) -> list[str] | None:
    """The options for the rule that `describe_rule` wrote as `words`; None if it did not write them."""
    if words == "bitwise":
        return ["--bitwise"]
    if found := re.fullmatch(r"\|x - y\| <= (\S+) \+ (\S+) \|y\|", words):
        return ["--tol", ",".join(found.groups())]
    found = re.fullmatch(r"error <= (\S+) x torch's \+ rounding((?:, \S+ x for \w+)*)", words)
    if found is None:
        return None
    factors = [] if found[1] == f"{Bound().k:g}" else [found[1]]
    factors += [f"{name}={k}" for k, name in re.findall(r", (\S+) x for (\w+)", found[2])]
    return [word for factor in factors for word in ("--k", factor)]
