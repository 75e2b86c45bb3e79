# SPDX-License-Identifier: Apache-2.0
"""`gdnbench doctor`: what can run here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from gdnbench.cli.console import print_json, table
from gdnbench.tables import Fit


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Say what can run on this machine, and what the rest needs."""
    from gdnbench.doctor import examine

    findings = list(examine())
    if json:
        print_json([asdict(finding) for finding in findings])
        return
    rows = [(f.what, "yes" if f.works else "no", f.detail, "" if f.works else f.remedy) for f in findings]
    print(table(("what", "works", "found", "to do"), rows, fit=Fit(wrap=("found", "to do"))))
