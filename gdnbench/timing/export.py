# SPDX-License-Identifier: Apache-2.0
"""Times for machines: JSON, CSV, and reading back what a run store or a JSON file holds."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from gdnbench.errors import BadInputError
from gdnbench.store.address import Address, is_url, local_path
from gdnbench.store.recover import open_store
from gdnbench.timing.counting import CountsReport
from gdnbench.timing.json_values import to_plain
from gdnbench.timing.result import KernelTiming, RecordTiming
from gdnbench.timing.run import TimingReport

SCHEMA = 1

COLUMNS = (
    "record",
    "key",
    "op",
    "label",
    "kernel",
    "outcome",
    "reason",
    "cache",
    "form",
    "clock",
    "kind",
    "device",
    "blocks",
    "launches",
    "median_s",
    "lower_quartile_s",
    "upper_quartile_s",
    "interval_low_s",
    "interval_high_s",
    "against",
    "ratio",
    "low",
    "high",
    "confidence",
    "verdict",
    "bytes",
    "flop",
    "bytes_per_s",
    "flop_per_s",
    "of_ceiling",
    "ceiling_bytes_per_s",
    "end",
    "discarded",
    "time",
)


def timing_json(report: TimingReport) -> dict[str, Any]:
    """The whole report with every sample; `changes` since a baseline, null where there was none."""
    return {
        "schema": SCHEMA,
        "command": "time",
        "store": report.store,
        "kernels": list(report.kernels),
        "on": report.on,
        "mode": {"cache": str(report.mode.cache), "form": str(report.mode.form)},
        "rule": report.rule,
        "exit_code": int(report.exit_code),
        "records": [record.to_json() for record in report.records],
        "changes": to_plain(report.changes),
    }


def counts_json(report: CountsReport) -> dict[str, Any]:
    """The simulator's counts; there are no times."""
    return {
        "schema": SCHEMA,
        "command": "time",
        "store": report.store,
        "kernels": list(report.kernels),
        "on": "sim",
        "rule": report.rule,
        "exit_code": int(report.exit_code),
        "records": to_plain(report.records),
    }


def timing_csv(report: TimingReport) -> str:
    """A line for each kernel and record, those that were not timed too; times in seconds."""
    page = io.StringIO()
    writer = csv.DictWriter(page, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for record in report.records:
        for kernel in record.kernels:
            writer.writerow(_line(record, kernel))
    return page.getvalue()


def _line(record: RecordTiming, kernel: KernelTiming) -> dict[str, Any]:
    line: dict[str, Any] = {
        "record": record.number,
        "key": record.key,
        "op": record.op,
        "label": record.label,
        "kernel": kernel.name,
        "outcome": str(kernel.outcome),
        "reason": kernel.reason,
        "cache": str(record.mode.cache),
        "form": str(record.mode.form),
        "clock": record.clock,
        "kind": record.machine.kind,
        "device": record.machine.device,
        "time": record.time,
    }
    if kernel.summary is None:
        return line
    line |= {
        "blocks": kernel.summary.count,
        "launches": kernel.launches,
        "median_s": kernel.summary.median,
        "lower_quartile_s": kernel.summary.lower,
        "upper_quartile_s": kernel.summary.upper,
        "interval_low_s": kernel.interval and kernel.interval.low,
        "interval_high_s": kernel.interval and kernel.interval.high,
        "end": str(record.end),
        "discarded": sum(record.discarded.values()),
    }
    pair = next((pair for pair in record.pairs if pair.other == kernel.name), None)
    if pair is not None:
        line |= {"against": pair.first, "verdict": str(pair.verdict)}
        if pair.interval is not None:
            found = pair.interval
            line |= {"ratio": found.ratio, "low": found.low, "high": found.high}
            line["confidence"] = found.confidence
    if kernel.rates is not None:
        rates = kernel.rates
        line |= {"bytes": rates.bytes, "flop": rates.flop, "of_ceiling": rates.of_ceiling}
        line |= {"bytes_per_s": rates.bytes_per_second, "flop_per_s": rates.flop_per_second}
    if record.ceiling is not None:
        line["ceiling_bytes_per_s"] = record.ceiling.bytes_per_second
    return line


def read_timings(path: Address) -> list[RecordTiming]:
    """What `time --save` or `time --json` wrote. BadInputError for anything else, StoreError for a store that
    cannot be read."""
    if not is_url(path) and (place := local_path(path)).is_file() and place.suffix != ".zip":
        return _from_file(place)
    with open_store(path) as store:
        runs = [(record.number, record.info.run.get("timing")) for record in store.records]
    found = [
        RecordTiming.from_json(value, f"{path} record {number}")
        for number, value in runs
        if value is not None
    ]
    if not found:
        raise BadInputError(f"{path} holds no times: name a run of `gdnbench time --save`, or its --json")
    return found


def _from_file(path: Path) -> list[RecordTiming]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, too long a number
        raise BadInputError(f"{path} cannot be read as JSON: {error}") from None
    records = document.get("records") if isinstance(document, dict) else None
    if not isinstance(records, list) or document.get("command") != "time":
        raise BadInputError(f"{path} is no result of `gdnbench time --json`")
    if document.get("schema") != SCHEMA:
        raise BadInputError(f"{path} has schema {document.get('schema')!r}; this gdnbench reads {SCHEMA}")
    return [RecordTiming.from_json(value, f"{path} record {i}") for i, value in enumerate(records)]
