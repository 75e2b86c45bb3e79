# SPDX-License-Identifier: Apache-2.0
"""Writes a suite's results as JUnit XML: a test suite for each entry, a test case for each record."""

from __future__ import annotations

from gdnbench.errors import Exit
from gdnbench.report.export import failure_lines, junit_element
from gdnbench.report.junit import JunitSuite, Problem, junit_text
from gdnbench.suite.plan import Entry
from gdnbench.suite.result import EntryResult, LineageResult, SuiteResult
from gdnbench.suite.verdict import Verdict

WHOLE = "the entry as a whole"


def to_junit(result: SuiteResult) -> str:
    """The JUnit document.

    Known failures are skipped with their reason; an error worse than accepted is a failure. An entry that
    could not run is a test case, and so is an entry that has not run, so that a killed run does not pass.
    """
    suites = [_lineage(one) for one in result.lineage]
    suites += [_suite(one) for one in result.entries]
    suites += [_not_run(entry) for entry in result.suite.entries[len(result.entries) :]]
    return junit_text(suites, f"gdnbench {result.suite.path}")


def _suite(one: EntryResult) -> JunitSuite:
    entry = one.entry
    properties = {"capture": entry.capture, "kernel": entry.written, "on": entry.on}
    suite = JunitSuite(entry.name, properties, f"{one.seconds:.6f}")
    for verdict in one.verdicts:
        record, element, problem = verdict.record, _element(verdict), None
        if element is not None:
            text = "\n".join([verdict.reason, *failure_lines(record)])
            problem = Problem(element, verdict.outcome, verdict.reason, text)
        suite.add_case(entry.name, record.label, record.seconds, problem)
    if one.error or one.interrupted:
        skipped = one.code in (Exit.PASS, Exit.CANNOT_RUN) and not one.interrupted
        kind, reason = ("interrupted", "interrupted") if one.interrupted else ("cannot run", one.error)
        problem = Problem("skipped" if skipped else "error", kind, reason)
        suite.add_case(entry.name, WHOLE, one.seconds, problem)
    return suite


def _lineage(one: LineageResult) -> JunitSuite:
    """A lineage check, one test case."""
    suite = JunitSuite(one.check.name, {"capture": one.check.capture}, f"{one.seconds:.6f}")
    problem = None
    if one.breaks:
        problem = Problem("failure", "broken chain", one.breaks[0], "\n".join(one.breaks))
    elif one.error:
        skipped = one.code is Exit.CANNOT_RUN
        problem = Problem("skipped" if skipped else "error", "cannot run", one.error)
    suite.add_case(one.check.name, WHOLE, one.seconds, problem)
    return suite


def _not_run(entry: Entry) -> JunitSuite:
    suite = JunitSuite(entry.name, seconds="0")
    suite.add_case(entry.name, WHOLE, 0.0, Problem("error", "not run", "the suite ended before it"))
    return suite


def _element(verdict: Verdict) -> str | None:
    """The JUnit element of a verdict; None for a pass."""
    if verdict.skipped or (verdict.excused and not verdict.failures):
        return "skipped"
    if verdict.failures and verdict.record.outcome.exit_code is Exit.PASS:
        return "failure"
    return junit_element(verdict.record)
