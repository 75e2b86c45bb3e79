# SPDX-License-Identifier: Apache-2.0
"""The result of `gdnbench lineage` as JUnit XML."""

from __future__ import annotations

from gdnbench.lineage.check import LineageReport, ProcessResult
from gdnbench.lineage.detect import ChainResult
from gdnbench.lineage.text import describe
from gdnbench.report.junit import JunitSuite, Problem, junit_text


def to_junit(report: LineageReport) -> str:
    """A test suite for each process, a test case for each chain; a chain of which nothing is known is
    skipped."""
    return junit_text([_suite(process) for process in report.processes], "gdnbench lineage")


def _suite(process: ProcessResult) -> JunitSuite:
    suite = JunitSuite(process.process, {"store": process.store, "rank": process.rank})
    for chain in process.chains:
        suite.add_case(chain.layer, chain.name, 0.0, _problem(process, chain))
    return suite


def _problem(process: ProcessResult, chain: ChainResult) -> Problem | None:
    if chain.findings:
        texts = [
            f"{one.kind.value}: {describe(process.table, one.damage)}; {describe(process.table, one.found)}"
            for one in chain.findings
        ]
        return Problem("failure", chain.findings[0].kind.value, texts[0], "\n".join(texts))
    if not chain.right and chain.unknown:
        reason, count = chain.unknown.most_common(1)[0]
        return Problem("skipped", "unknown", f"{count} of {chain.reads} reads: {reason}")
    return None
