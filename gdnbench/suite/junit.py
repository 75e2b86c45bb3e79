"""What a suite came to as JUnit XML: a test suite an entry, a test case a record."""

from __future__ import annotations

from xml.etree import ElementTree

from gdnbench.errors import Exit
from gdnbench.report.export import details, junit_kind, xml_text
from gdnbench.suite.plan import Entry
from gdnbench.suite.result import EntryResult, SuiteResult
from gdnbench.suite.verdict import Verdict

COUNTERS = ("tests", "failures", "errors", "skipped")


def to_junit(result: SuiteResult) -> str:
    """Known failures are skipped with their reason; what is worse than accepted is a failure. An entry that
    could not run is a case of its own, and so is one that has not run: a killed run does not pass."""
    root = ElementTree.Element("testsuites", name=f"gdnbench {xml_text(str(result.suite.path))}")
    totals = dict.fromkeys(COUNTERS, 0)
    found = [_suite(one) for one in result.entries]
    found += [_not_run(entry) for entry in result.suite.entries[len(result.entries) :]]
    for suite, counts in found:
        root.append(suite)
        for name, count in counts.items():
            suite.set(name, str(count))
            totals[name] += count
    for name, count in totals.items():
        root.set(name, str(count))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _suite(one: EntryResult) -> tuple[ElementTree.Element, dict[str, int]]:
    entry, counts = one.entry, dict.fromkeys(COUNTERS, 0)
    suite = ElementTree.Element("testsuite", name=entry.name, time=f"{one.seconds:.6f}")
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("capture", entry.capture), ("kernel", entry.written), ("on", entry.on)):
        ElementTree.SubElement(properties, "property", name=name, value=xml_text(value))
    for verdict in one.verdicts:
        record = verdict.record
        case = _case(suite, counts, entry.name, record.label, record.seconds)
        kind = _kind(verdict)
        if kind is not None:
            element, counter = kind
            _add(case, counts, element, counter, verdict.outcome, verdict.reason).text = xml_text(
                "\n".join([verdict.reason, *details(record)])
            )
    if one.error or one.interrupted:
        case = _case(suite, counts, entry.name, "the entry as a whole", one.seconds)
        skipped = one.code in (Exit.PASS, Exit.CANNOT_RUN) and not one.interrupted
        kind = ("skipped", "skipped") if skipped else ("error", "errors")
        reason = "interrupted" if one.interrupted else one.error
        _add(case, counts, *kind, "interrupted" if one.interrupted else "cannot run", reason)
    return suite, counts


def _not_run(entry: Entry) -> tuple[ElementTree.Element, dict[str, int]]:
    counts = dict.fromkeys(COUNTERS, 0)
    suite = ElementTree.Element("testsuite", name=entry.name, time="0")
    case = _case(suite, counts, entry.name, "the entry as a whole", 0.0)
    _add(case, counts, "error", "errors", "not run", "the suite ended before it")
    return suite, counts


def _case(
    suite: ElementTree.Element, counts: dict[str, int], entry: str, name: str, seconds: float
) -> ElementTree.Element:
    counts["tests"] += 1
    return ElementTree.SubElement(
        suite, "testcase", classname=entry, name=xml_text(name), time=f"{seconds:.6f}"
    )


def _add(
    case: ElementTree.Element, counts: dict[str, int], element: str, counter: str, kind: str, reason: str
) -> ElementTree.Element:
    counts[counter] += 1
    return ElementTree.SubElement(case, element, message=xml_text(reason), type=kind)


def _kind(verdict: Verdict) -> tuple[str, str] | None:
    """Element and counter; None for a pass."""
    if verdict.skipped or (verdict.excused and not verdict.failures):
        return "skipped", "skipped"
    if verdict.failures and verdict.record.outcome.exit_code is Exit.PASS:
        return "failure", "failures"
    return junit_kind(verdict.record)
