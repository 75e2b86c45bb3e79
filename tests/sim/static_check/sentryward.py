# SPDX-License-Identifier: Apache-2.0
"""SentryWard as a program beside ours, and what it says in one word."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

CLEAN = ("race_free", "verified")
FOUND = ("not_wellsynced", "potential_race", "invalid_lifecycle")
# It ends by itself at its own limit; what it does not end is ended so much later.
GRACE_S = 30.0


class Says(StrEnum):
    """`NOTHING`: it does not take the kernel, or not in its time or memory."""

    CLEAN = "clean"
    FOUND = "found"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`result` is its own category, `why` its first diagnostic."""

    says: Says
    result: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class SentryWard:
    """The program, and what one call of it may take."""

    program: str
    seconds: float
    mebibytes: int

    def check(self, ptx: str, launch: dict[str, Any]) -> Verdict:
        with tempfile.TemporaryDirectory(prefix="gdnbench-static-") as folder:
            kernel, sizes = Path(folder) / "kernel.ptx", Path(folder) / "input.json"
            kernel.write_text(ptx)
            sizes.write_text(json.dumps(launch))
            command = [self.program, str(kernel), "--input", str(sizes), f"--timeout={self.seconds:g}"]
            command.append(f"--memory-limit-mib={self.mebibytes}")
            try:
                ended = subprocess.run(
                    command, capture_output=True, text=True, timeout=self.seconds + GRACE_S
                )
            except subprocess.TimeoutExpired:
                return Verdict(Says.NOTHING, "timeout", f"not over {GRACE_S:g} s after its limit")
        return verdict(ended.stdout, ended.stderr)


def verdict(output: str, errors: str = "") -> Verdict:
    """Of what it prints, a JSON object with `result`; anything else is a failure of the tool's."""
    try:
        report = json.loads(output)
        result = report["result"]
    except (ValueError, KeyError, TypeError):
        return Verdict(Says.NOTHING, "tool_failure", (errors or output).strip().rpartition("\n")[2])
    why = _first(report.get("diagnostics") or ())
    if result in CLEAN:
        return Verdict(Says.CLEAN, result, why)
    return Verdict(Says.FOUND if result in FOUND else Says.NOTHING, result, why)


def _first(diagnostics: Sequence[dict[str, Any]]) -> str:
    """Code, line of the PTX and message of the first; the others are mostly more of its kind."""
    if not diagnostics:
        return ""
    one = diagnostics[0]
    details = one.get("details") or {}
    line = details.get("ptx_line") or (details.get("location") or {}).get("line")
    where = f" at PTX line {line}" if line else ""
    message = f": {one['message']}" if one.get("message") else ""
    return f"{one.get('code', 'unnamed')}{where}{message}"
