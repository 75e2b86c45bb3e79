# SPDX-License-Identifier: Apache-2.0
"""Writes JUnit XML for CI systems: suites of test cases, each with its counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

# XML 1.0 cannot contain these characters, not even escaped.
_NOT_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_COUNTERS: Final = {"failure": "failures", "error": "errors", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a test case did not pass. `element`: failure, error or skipped; `kind`: its type attribute."""

    element: str
    kind: str
    message: str
    text: str | None = None


class JunitSuite:
    """A test suite to which cases are added. `seconds`: None to write no time."""

    def __init__(
        self, name: str, properties: Mapping[str, str] | None = None, seconds: str | None = None
    ) -> None:
        attributes = {"name": _xml_text(name)}
        if seconds is not None:
            attributes["time"] = seconds
        self.element = ElementTree.Element("testsuite", attributes)
        self.counts = dict.fromkeys(("tests", *_COUNTERS.values()), 0)
        _add_properties(self.element, properties)

    def add_case(
        self,
        classname: str,
        name: str,
        seconds: float,
        problem: Problem | None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Add a test case; it passed if `problem` is None."""
        self.counts["tests"] += 1
        case = ElementTree.SubElement(
            self.element,
            "testcase",
            classname=_xml_text(classname),
            name=_xml_text(name),
            time=f"{seconds:.6f}",
        )
        _add_properties(case, properties)
        if problem is None:
            return
        self.counts[_COUNTERS[problem.element]] += 1
        found = ElementTree.SubElement(
            case, problem.element, message=_xml_text(problem.message), type=_xml_text(problem.kind)
        )
        if problem.text is not None:
            found.text = _xml_text(problem.text)


def _add_properties(element: ElementTree.Element, properties: Mapping[str, str] | None) -> None:
    if properties:
        parent = ElementTree.SubElement(element, "properties")
        for key, value in properties.items():
            ElementTree.SubElement(parent, "property", name=_xml_text(key), value=_xml_text(value))


def junit_text(suites: Iterable[JunitSuite], name: str | None = None) -> str:
    """The document. With a `name`, its root has that name and the sums of all counts."""
    root = ElementTree.Element("testsuites")
    totals = dict.fromkeys(("tests", *_COUNTERS.values()), 0)
    for suite in suites:
        root.append(suite.element)
        for counter, count in suite.counts.items():
            suite.element.set(counter, str(count))
            totals[counter] += count
    if name is not None:
        root.set("name", _xml_text(name))
        for counter, count in totals.items():
            root.set(counter, str(count))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _xml_text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
