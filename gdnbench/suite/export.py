# SPDX-License-Identifier: Apache-2.0
"""Exports a suite's result as summary.json; the schema is in docs/ci.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gdnbench.suite.plan import Known
from gdnbench.suite.ratchet import METRICS, Change
from gdnbench.suite.result import EntryResult, LineageResult, SuiteResult
from gdnbench.suite.verdict import Verdict

SCHEMA = 1


def summary_json(result: SuiteResult, finished: bool = True) -> dict[str, Any]:
    """The whole result, without provenance."""
    return {
        "schema": SCHEMA,
        "suite": str(result.suite.path),
        "state": "interrupted" if result.interrupted else "finished" if finished else "running",
        "exit_code": int(result.exit_code),
        "not_run": [entry.name for entry in result.suite.entries[len(result.entries) :]],
        "entries": [_entry(result, entry) for entry in result.entries],
        "lineage": [_lineage(one) for one in result.lineage],
        "known_passing": [_known(known) for known in result.known_passing],
        "known_unmatched": [_known(known) for known in result.known_unmatched],
        "baselines": None if result.suite.baselines is None else str(result.suite.baselines),
        "update": result.update,
    }


def _entry(result: SuiteResult, one: EntryResult) -> dict[str, Any]:
    entry = one.entry
    has_run = (result.folder / one.run_store).exists()
    return {
        "name": entry.name,
        "capture": entry.capture,
        "kernel": entry.written,
        "on": entry.on,
        "run": one.run_store if has_run else None,
        "exit_code": int(one.exit_code),
        "error": one.error,
        "interrupted": one.interrupted,
        "records": len(one.verdicts),
        "expected": one.expected,
        "outcomes": one.outcomes,
        "baseline": {
            "compared": sum(verdict.compared for verdict in one.verdicts),
            "missing": sum(len(verdict.missing) for verdict in one.verdicts),
            "worse": [_change(verdict, change) for verdict in one.verdicts for change in verdict.worse],
            "better": [_change(verdict, change) for verdict in one.verdicts for change in verdict.better],
        },
        "known": [
            {**_known(known), "record": verdict.record.key, "failure": failure.text}
            for verdict in one.verdicts
            for failure, known in verdict.excused
        ],
        "failures": [_failure(result, one, verdict) for verdict in one.failing],
        "errors": {
            verdict.record.key: {
                tensor: {metric: getattr(errors, metric) for metric in METRICS}
                for tensor, errors in verdict.errors.items()
            }
            for verdict in one.verdicts
            if verdict.errors
        },
        "command": result.command(entry),
        "seconds": one.seconds,
    }


def _lineage(one: LineageResult) -> dict[str, Any]:
    return {
        "name": one.check.name,
        "capture": one.check.capture,
        "exit_code": int(one.exit_code),
        "error": one.error,
        "summary": one.summary,
        "breaks": list(one.breaks),
        "command": one.command,
        "seconds": one.seconds,
    }


def _failure(result: SuiteResult, one: EntryResult, verdict: Verdict) -> dict[str, Any]:
    return {
        "number": verdict.record.number,
        "record": verdict.record.key,
        "label": verdict.record.label,
        "outcome": verdict.outcome,
        "failures": [asdict(failure) for failure in verdict.failures],
        "expired": [_known(known) for known in verdict.expired],
        "command": result.command(one.entry, verdict.record.number),
    }


def _change(verdict: Verdict, change: Change) -> dict[str, Any]:
    return {"record": verdict.record.key, **asdict(change)}


def _known(known: Known) -> dict[str, Any]:
    return {
        "where": known.where,
        "known": str(known),
        "reason": known.reason,
        "link": known.link,
        "until": known.until.isoformat(),
    }
