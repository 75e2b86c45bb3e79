# SPDX-License-Identifier: Apache-2.0
"""Feeds the calls of a table to the online check."""

from __future__ import annotations

from itertools import groupby

from gdnbench.lineage.finding import Finding
from gdnbench.lineage.online import REMEMBERED, OnlineLineage
from gdnbench.lineage.table import AccessTable, access_of


def online_findings(table: AccessTable, remembered: int = REMEMBERED) -> list[Finding]:
    """What the online check finds in the calls of a table of one layer and one chain."""
    lineage = OnlineLineage(remembered=remembered)
    accesses = [access_of(row) for row in table.rows]
    found = []
    for step, of_call in groupby(accesses, lambda one: one.step):
        found += lineage.add_call("layer", step, {"state": list(of_call)})
    return found
