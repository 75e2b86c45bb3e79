# SPDX-License-Identifier: Apache-2.0
"""Exports a replay or diff as JSON (schema in docs/replay.md) and JUnit XML."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from gdnbench.errors import Exit
from gdnbench.judge.error_attribution import StageShare
from gdnbench.judge.grid import Grid
from gdnbench.judge.metrics import Errors, Worst
from gdnbench.judge.result import LimitCheck, TensorResult
from gdnbench.ops import operations
from gdnbench.report.junit import JunitSuite, Problem, junit_text
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult, Report
from gdnbench.sim import group_findings
from gdnbench_kernels.contract import Ranges

SCHEMA = 1


def to_json(report: Report) -> str:
    """The whole report as one document; NaN and infinities become the strings "nan", "inf" and "-inf"."""
    document = {
        "schema": SCHEMA,
        **report.header,
        "exit_code": int(report.exit_code),
        "outcomes": {str(outcome): count for outcome, count in sorted(report.outcomes.items())},
        "records": [record_json(record) for record in report.records],
    }
    return json.dumps(document, indent=1, allow_nan=False)


def to_junit(report: Report) -> str:
    """One test case for each record. Mismatches and check errors are failures; crashes, hangs, refusals and
    kernels that do not compile are errors; records that could not run are skipped."""
    suite = JunitSuite(f"gdnbench {report.header['command']}", report.header)
    for record in report.records:
        element = junit_element(record)
        problem = None
        if element is not None:
            problem = Problem(element, str(record.outcome), record.reason, "\n".join(failure_lines(record)))
        suite.add_case(record.op, record.label, record.seconds, problem, _predicted_seconds(record))
    return junit_text([suite])


def _predicted_seconds(record: RecordResult) -> dict[str, str]:
    """Properties of a test case: the predicted seconds of each kernel, or why there are none."""
    return {
        f"predicted seconds of {time.kernel}": f"not predicted: {time.no_time}"
        if time.call is None
        else f"{time.call.seconds:.6g} on {time.call.machine}"
        for time in record.predicted
    }


def junit_element(record: RecordResult) -> str | None:
    """The JUnit element for a record's outcome; None for a pass."""
    if record.outcome.exit_code is Exit.PASS:
        return None
    if record.outcome.exit_code is Exit.CANNOT_RUN:
        return "skipped"
    return "failure" if record.outcome in (Outcome.MISMATCH, Outcome.CHECK) else "error"


def failure_lines(record: RecordResult) -> list[str]:
    """Everything that is wrong with a record, one line each, and the traceback of a kernel that failed."""
    lines = [record.reason, *record.faults]
    for tensor in record.tensors:
        for reason in tensor.reasons:
            lines.append(f"{tensor.side} {tensor.tensor}: {reason}")
        if not tensor.passed and tensor.worst is not None:
            lines.append(f"{tensor.side} {tensor.tensor}: worst {tensor.worst}")
    lines += map(str, group_findings(finding for finding in record.findings or () if finding.fails))
    return [*lines, record.error.traceback] if record.error is not None and record.error.traceback else lines


def record_json(record: RecordResult, *, grids: bool = False) -> dict[str, Any]:
    """One record as JSON values; `grids` adds the errors by chunk and head."""
    return {
        "number": record.number,
        "key": record.key,
        "other": record.other,
        "op": record.op,
        "layer": record.layer,
        "layer_index": record.layer_index,
        "step": record.step,
        "decode": _decodes(record.op),
        "outcome": str(record.outcome),
        "reason": record.reason,
        "imported": record.imported,
        "printed": record.printed,
        "error": record.error and record.error.to_json(),
        "faults": list(record.faults),
        "notes": list(record.notes),
        "findings": record.findings and [finding.as_json() for finding in record.findings],
        "seconds": record.seconds,
        "timing": record.timing and record.timing.to_json(),
        "predicted": [time.to_json() for time in record.predicted] or None,
        "tensors": [_tensor(tensor, grids) for tensor in record.tensors],
        "waterfall": record.waterfall and [_plain(share) for share in record.waterfall],
        "capture": None if record.ranges is None else [_plain(one) for one in record.ranges],
    }


def _decodes(name: str) -> bool:
    """Whether the operation is a decode; False for an unknown operation."""
    found = operations().get(name)
    return found is not None and found.decodes


def _plain(value: StageShare | Ranges) -> dict[str, Any]:
    """A dataclass of texts, numbers, and numbers by name as JSON values."""
    found: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if isinstance(item, Mapping):
            item = {name: _number(number) for name, number in item.items()}
        found[field.name] = _number(item) if isinstance(item, float) else item
    return found


def _tensor(tensor: TensorResult, grids: bool) -> dict[str, Any]:
    wrong = tensor.nonfinite
    grid = {"grid": tensor.grid and grid_json(tensor.grid)} if grids else {}
    return {
        "tensor": tensor.tensor,
        "when": str(tensor.when),
        "stage": tensor.stage,
        "side": str(tensor.side),
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "judged": tensor.judged,
        "passed": tensor.passed,
        "reasons": list(tensor.reasons),
        "elements": tensor.elements,
        "unequal": tensor.unequal,
        "excluded": tensor.excluded,
        "errors": _errors(tensor.errors),
        "torch_errors": _errors(tensor.yardstick),
        "nonfinite": wrong
        and {
            "nan_only_x": wrong.nan_only_x,
            "nan_only_y": wrong.nan_only_y,
            "inf_unequal": wrong.inf_unequal,
            "first": _worst(wrong.first),
        },
        "ulp_histogram": list(tensor.ulp_histogram),
        "worst": _worst(tensor.worst),
        "worst_groups": [
            {
                "sequence": g.sequence,
                "chunk": g.chunk,
                "head": g.head,
                "nonfinite": g.nonfinite,
                **(_errors(g.errors) or {}),
            }
            for g in tensor.groups
        ],
        "held": [_held(held) for held in tensor.held],
        **grid,
    }


def grid_json(grid: Grid) -> dict[str, Any]:
    """A grid as JSON values: regions as [sequence, chunk, first row, rows], arrays as `pack_base64` text."""
    torchs = grid.torch_rms
    return {
        "regions": [[r.sequence, r.chunk, r.start, r.stop - r.start] for r in grid.regions],
        "heads": grid.heads,
        "axes": list(grid.axes),
        "left_out": grid.left_out,
        "rms": pack_base64(grid.rms),
        "rms_reference": pack_base64(grid.rms_reference),
        "torch_rms": None if torchs is None else pack_base64(torchs),
        "max_abs": pack_base64(grid.max_abs),
        "nonfinite": pack_base64(grid.nonfinite),
        "worst": pack_base64(grid.worst),
        "x": pack_base64(grid.x),
        "y": pack_base64(grid.y),
    }


def pack_base64(values: np.ndarray) -> str:
    """fp32 or int32 elements in C order, little-endian, in Base64."""
    assert values.dtype in (np.float32, np.int32)
    return base64.b64encode(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()).decode()


def _held(held: LimitCheck) -> dict[str, Any]:
    return {
        "what": held.what,
        "error": _number(held.error),
        "limit": _number(held.limit),
        "sequence": held.sequence,
        "chunk": held.chunk,
        "head": held.head,
        "token": held.token,
    }


def _errors(errors: Errors | None) -> dict[str, Any] | None:
    if errors is None:
        return None
    return {
        "count": errors.count,
        "max_abs": _number(errors.max_abs),
        "mean_abs": _number(errors.mean_abs),
        "rms": _number(errors.rms),
        "rms_reference": _number(errors.rms_reference),
        "rms_ratio": _number(errors.rms_ratio),
        "relative_l2": _number(errors.relative_l2),
        "cosine": _number(errors.cosine),
        "max_ulp": errors.max_ulp,
    }


def _worst(worst: Worst | None) -> dict[str, Any] | None:
    if worst is None:
        return None
    at = worst.at
    return {
        "index": list(at.index),
        "sequence": at.sequence,
        "chunk": at.chunk,
        "token": at.token,
        "head": at.head,
        "dims": dict(at.dims),
        "x": _number(worst.x),
        "y": _number(worst.y),
        "ulp": worst.ulp,
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
