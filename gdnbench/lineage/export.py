# SPDX-License-Identifier: Apache-2.0
"""A check's result as JSON."""

from __future__ import annotations

from typing import Any

from gdnbench.lineage.check import LineageReport
from gdnbench.lineage.detect import ChainResult
from gdnbench.lineage.finding import Finding
from gdnbench.lineage.table import Access, AccessTable
from gdnbench.lineage.text import request_name
from gdnbench.store.access_log import AccessKind


def to_json(report: LineageReport) -> dict[str, Any]:
    """The document of --json; docs/lineage.md describes it."""
    unknown = report.unknown
    return {
        "schema": 1,
        "reads": report.total("reads"),
        "right": report.total("right"),
        "breaks": report.breaks,
        "unknown": {str(reason): count for reason, count in unknown.items()},
        "processes": [
            {
                "store": process.store,
                "process": process.process,
                "rank": process.rank,
                "sample": process.table.sample,
                "chains": [_chain(process.table, chain) for chain in process.chains],
            }
            for process in report.processes
        ],
    }


def _chain(table: AccessTable, chain: ChainResult) -> dict[str, Any]:
    return {
        "layer": chain.layer,
        "chain": chain.name,
        "reads": chain.reads,
        "right": chain.right,
        "unknown": {str(reason): count for reason, count in chain.unknown.items()},
        "breaks": [_finding(table, finding) for finding in chain.findings],
    }


def _finding(table: AccessTable, finding: Finding) -> dict[str, Any]:
    parts = ("damage", "found", "own", "source")
    found = {name: access_json(table, getattr(finding, name)) for name in parts}
    return {"break": finding.kind.value, **found}


def access_json(table: AccessTable, access: Access | None) -> dict[str, Any] | None:
    """An access as docs/lineage.md describes it; null for what nobody claimed."""
    if access is None:
        return None

    def known(number: int) -> int | None:
        return None if number < 0 else number

    return {
        "call": access.call,
        "record": table.records.get(access.call),
        "step": access.step,
        "access": "write" if access.kind == AccessKind.WRITE else "read",
        "sequence": access.sequence,
        "request": None if access.request < 0 else request_name(table, access),
        "padding": access.is_padding,
        "position": known(access.position),
        "slot": known(access.slot),
        "accepted": known(access.accepted),
        "tokens": access.tokens,
        "digest": "{:016x}{:016x}".format(*access.digest) if access.digest_known else None,
    }
