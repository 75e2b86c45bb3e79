# SPDX-License-Identifier: Apache-2.0
"""Rules of single tensors, read from the text of `--rule`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.judge.rule import Rule

RULE = "Set the rule of one tensor: [OPERATION.]TENSOR=k:K, =tol:ABS,REL or =bitwise. Repeatable."


def tensor_rules(texts: Sequence[str] | None) -> dict[str, Rule]:
    """`["o=bitwise", "gdn_decode.state=k:3"]` -> rules by name; BadInputError for anything else."""
    from gdnbench.judge.rule import make_rule

    rules: dict[str, Rule] = {}
    for text in texts or ():
        name, _, words = text.partition("=")
        kind, _, value = words.partition(":")
        try:
            numbers = [float(number) for number in value.split(",")] if value else []
        except ValueError:
            numbers = []
        if not name or (kind, len(numbers)) not in (("bitwise", 0), ("k", 1), ("tol", 1), ("tol", 2)):
            raise BadInputError(f"--rule {text!r} is no TENSOR=k:K, TENSOR=tol:ABS,REL or TENSOR=bitwise")
        if not all(map(math.isfinite, numbers)):
            raise BadInputError(f"--rule {text} is not finite; give numbers such as k:3")
        if name in rules:
            raise BadInputError(f"--rule: {name} has two rules; give one")
        if kind == "k":
            rules[name] = make_rule(k=numbers[0])
        elif kind == "tol":
            rules[name] = make_rule(tol=(numbers[0], numbers[1] if len(numbers) > 1 else 0.0))
        else:
            rules[name] = make_rule(bitwise=True)
    return rules
