# SPDX-License-Identifier: Apache-2.0
"""Prints an operation's tables in Markdown: `python -m gdnbench_kernels.describe NAME`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence

from gdnbench_kernels.contract import Operation, Role


def describe(operation: Operation) -> str:
    """Tensors, scalars, conventions, conversions, stages and kernels: a heading and a table each."""
    sections = {
        "Tensors": _table(
            ("name", "axes", "dtypes", "role", "meaning"),
            (
                (
                    f"`{spec.name}`",
                    _axes(spec.axes),
                    ", ".join(spec.dtypes),
                    f"{spec.role}, optional" if spec.optional and spec.role is Role.INPUT else str(spec.role),
                    spec.meaning,
                )
                for spec in operation.tensors
            ),
        ),
        "Scalars": _table(
            ("name", "type", "default", "meaning"),
            (
                (f"`{spec.name}`", spec.kind.__name__, f"{spec.default}", spec.meaning)
                for spec in operation.scalars
            ),
        ),
        "Conventions": _table(
            ("name", "values, default first", "meaning"),
            ((f"`{c.name}`", ", ".join(c.values), c.meaning) for c in operation.conventions),
        ),
        "Conversions": _table(
            ("convention", "from", "to", "what is done"),
            ((f"`{name}`", old, new, text) for (name, old, new), text in operation.conversions.items()),
        ),
        "Stages": _table(
            ("name", "axes", "formula", "rounded to", "meaning"),
            (
                (
                    f"`{stage.tensor.name}`",
                    _axes(stage.tensor.axes),
                    f"`{stage.formula}`",
                    f"dtype of {stage.rounded_to}" if len(stage.rounded_to) == 1 else stage.rounded_to,
                    stage.tensor.meaning,
                )
                for stage in operation.stages
            ),
        ),
        "Kernels": _table(
            ("name", "takes", "meaning"),
            (
                (f"`{name}`", _accepted(operation, entry.conventions), entry.meaning)
                for name, entry in operation.kernels.items()
            ),
        ),
    }
    return "\n\n".join(f"### {title}\n{table}" for title, table in sections.items() if table)


def _axes(axes: Sequence[str]) -> str:
    return f"[{', '.join(axes)}]"


def _accepted(operation: Operation, accepted: Mapping[str, tuple[str, ...]]) -> str:
    defaults = operation.default_conventions
    return "; ".join(f"{name} {' or '.join(accepted.get(name, (defaults[name],)))}" for name in defaults)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, or nothing without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *lines])


if __name__ == "__main__":
    name = sys.argv[1]
    print(describe(importlib.import_module(f"gdnbench_kernels.{name}.contract").OPERATION))
