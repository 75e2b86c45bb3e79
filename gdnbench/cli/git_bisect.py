# SPDX-License-Identifier: Apache-2.0
"""Exit statuses that `git bisect run` understands: 0 good, 1 to 124 bad, 125 neither."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec

import typer

from gdnbench.cli.statuses import NO_VERDICT
from gdnbench.errors import EXPECTED_ERRORS, Exit
from gdnbench.printable import printable

if TYPE_CHECKING:
    from gdnbench.report.report import ReplayReport

P = ParamSpec("P")

OPTION = "--git-bisect"


def with_git_statuses(command: Callable[P, None]) -> Callable[P, None]:
    """`command`, for which, where it is called with `git_bisect`, whatever it raises is no verdict."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except typer.Exit:
            raise
        except Exception as error:
            if not kwargs.get("git_bisect"):
                raise
            if isinstance(error, (*EXPECTED_ERRORS, OSError)):
                print(f"gdnbench: {printable(error)}", file=sys.stderr)
            else:  # else Python would end by status 1, which is a bad commit's
                traceback.print_exception(error)
            raise typer.Exit(NO_VERDICT) from None

    return guarded


def status(report: ReplayReport) -> int:
    """1 if a kernel that could be called, and compiles, mismatched, crashed or hung; 0 if all records pass;
    else 125."""
    if any(one.ran_wrong for one in report.records):
        return int(Exit.MISMATCH)
    return int(Exit.PASS) if report.exit_code is Exit.PASS else NO_VERDICT
