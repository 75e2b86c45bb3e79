# SPDX-License-Identifier: Apache-2.0
"""Runs the lineage checks of a suite."""

from __future__ import annotations

import time

from gdnbench.errors import EXPECTED_ERRORS, BadInputError, exit_code_of
from gdnbench.lineage.check import check_stores
from gdnbench.lineage.text import break_text, lines, nothing_checked, summary
from gdnbench.store.recover import open_store
from gdnbench.suite.plan import LineageCheck
from gdnbench.suite.result import LineageResult


def run_lineage(check: LineageCheck) -> LineageResult:
    """Check one capture, as `gdnbench lineage` does. An error of the check is part of the result."""
    begin = time.monotonic()
    try:
        with open_store(check.path) as store:
            report = check_stores([store])
        if (reason := nothing_checked(report)) is not None:
            raise BadInputError(reason)
    except EXPECTED_ERRORS as error:
        seconds = time.monotonic() - begin
        return LineageResult(check, error=str(error), code=exit_code_of(error), seconds=seconds)
    breaks = tuple(map(break_text, lines(report)))
    return LineageResult(check, summary(report)[0], breaks, seconds=time.monotonic() - begin)
