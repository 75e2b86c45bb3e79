"""Rows of results as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gdnbench.api.errors import one_line_errors
from gdnbench.judge.result import Side
from gdnbench.report.report import RecordResult

if TYPE_CHECKING:
    import pandas

RESULT_COLUMNS = (
    *("record", "key", "op", "layer", "step", "outcome", "reason", "tensor", "when", "side", "stage"),
    *("judged", "passed", "elements", "unequal", "max_abs", "rms_ratio", "torch_rms_ratio", "of_limit"),
    "max_ulp",
)


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """`rows` with `columns` in this order; CannotRunError without pandas."""
    with one_line_errors():
        import pandas

    return pandas.DataFrame([[row.get(name) for name in columns] for row in rows], columns=list(columns))


def result_rows(records: Sequence[RecordResult]) -> Iterator[dict[str, Any]]:
    """A row for each judged or shown tensor, and one for a record without any."""
    for record in records:
        about = {
            "record": record.number,
            "key": record.key,
            "op": record.op,
            "layer": record.layer,
            "step": record.step,
            "outcome": str(record.outcome),
            "reason": record.reason,
        }
        if not record.tensors:
            yield about
        for tensor in record.tensors:
            errors, torchs = tensor.errors, tensor.yardstick
            yield about | {
                "tensor": tensor.tensor,
                "when": str(tensor.when),
                "side": str(tensor.side),
                "stage": tensor.stage,
                "judged": tensor.judged,
                "passed": tensor.passed,
                "elements": tensor.elements,
                "unequal": tensor.unequal,
                "max_abs": errors and errors.max_abs,
                "rms_ratio": errors and errors.rms_ratio,
                "torch_rms_ratio": torchs and torchs.rms_ratio,
                "of_limit": tensor.of_limit,
                # Conversions are compared in fp64, where a distance in ULP says nothing.
                "max_ulp": errors.max_ulp if errors and tensor.side is not Side.CONVERSION else None,
            }
