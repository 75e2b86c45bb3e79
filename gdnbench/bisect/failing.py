# SPDX-License-Identifier: Apache-2.0
"""Describes how a record fails, as facts of a verdict: which tensors, in which way, by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from gdnbench.judge.result import TensorResult
from gdnbench.report.report import RecordResult

VALUES, NOT_FINITE, FORM, WRITTEN = "values", "not finite", "form", "written"
"""Ways to fail: off by too much; NaN or infinite; another shape or dtype, or not there; written to where it
is to be left alone."""


def describe_failures(results: Iterable[RecordResult]) -> list[dict[str, Any]]:
    """An entry for each tensor that fails, and one for each fault, in order."""
    return [entry for result in results for entry in _of(result)]


def _of(result: RecordResult) -> Iterator[dict[str, Any]]:
    for fault in result.faults:
        yield {"tensor": "", "stage": False, "ways": [WRITTEN], "reasons": [fault]}
    for tensor in result.tensors:
        if tensor.judged and not tensor.passed:
            yield {
                "tensor": tensor.tensor,
                "stage": tensor.stage,
                "ways": _ways(tensor),
                "reasons": list(tensor.reasons),
                "relative": _relative(tensor),
                "at": _place(tensor),
                "held": [
                    {"what": held.what, "error": held.error, "limit": held.limit} for held in tensor.held
                ],
            }


def _place(tensor: TensorResult) -> dict[str, int]:
    """Sequence, chunk and head that are furthest off, as far as the tensor has them."""
    if tensor.groups:
        worst = tensor.groups[0]
        found = {"sequence": worst.sequence, "chunk": worst.chunk, "head": worst.head}
    elif tensor.worst is not None:
        at = tensor.worst.at
        found = {"sequence": at.sequence, "chunk": at.chunk, "head": at.head}
    else:
        return {}
    return {name: index for name, index in found.items() if index is not None}


def _ways(tensor: TensorResult) -> list[str]:
    if tensor.errors is None:
        return [FORM]
    spoilt = tensor.nonfinite is not None and tensor.nonfinite.unequal > 0
    return [NOT_FINITE, VALUES] if spoilt and len(tensor.reasons) > 1 else [NOT_FINITE if spoilt else VALUES]


def _relative(tensor: TensorResult) -> float | None:
    """RMS of the error over RMS of the exact result; None if that is zero or nothing is finite."""
    if tensor.errors is None or not math.isfinite(tensor.errors.rms_ratio):
        return None
    return tensor.errors.rms_ratio
