# SPDX-License-Identifier: Apache-2.0
"""What `explore` and `sim --explore` share: the command that repeats a run, and the table of runs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from gdnbench.cli.checking import print_unused, write_template
from gdnbench.cli.console import print_json, print_lines, table
from gdnbench.cli.statuses import INTERRUPTED
from gdnbench.errors import BadInputError, Exit
from gdnbench.printable import printable

if TYPE_CHECKING:
    from gdnbench.sim import Accepted
    from gdnbench.sim.explore import Exploration, Tried

EXPLORE = (
    "Run under N schedules, late, early and random ones, and compare the bits that they leave. Of a program:"
    " each launch, which then goes on with the bits of late. all: check instead all orders of what mbarriers"
    " and barriers do (docs/checker.md)."
)
HEADERS = ("shape", "runs", "bits", "verdict")


def typed(*words: object) -> str:
    """A command as a person types it; None and "" are left out."""
    return shlex.join(["gdnbench", *(str(word) for word in words if word not in (None, ""))])


def refuse_with(option: str, **others: object) -> None:
    """BadInputError for an option of `others`, by name, that is given beside `option`."""
    for name, value in others.items():
        if value is not None and value is not False:  # 0 is a value
            raise BadInputError(f"{option} runs many times: it does not go with --{name.replace('_', '-')}")


def conclude(
    found: Exploration, accepted: Accepted | None, template: Path | None, *, json: bool, verbose: bool
) -> NoReturn:
    """Print what was tried and found, write the `template` of `--write-accept`, and end the command."""
    if accepted is not None:
        found = found.accepting(accepted.apply)
    print_unused(accepted)
    if template is not None:
        write_template(template, (one.finding for one in found.found))
    if json:
        print_json(found.as_json() | {"unused": [] if accepted is None else accepted.unused()})
    else:
        print_lines("\n".join(_lines(found, verbose)))
    raise typer.Exit(_status(found))


def _status(found: Exploration) -> int:
    if not found.ok:
        return Exit.MISMATCH
    if found.interrupted:
        return INTERRUPTED
    return Exit.CANNOT_RUN if any(one.refused for one in found.tried) else Exit.PASS


def _lines(found: Exploration, verbose: bool) -> Iterator[str]:
    yield f"schedules: {', '.join(found.schedules)}"
    yield table(HEADERS, [_row(found, one) for one in found.tried], right=("runs",))
    for one in found.tried:
        if one.difference is not None:
            yield printable(f"{one.name}: {one.difference}")
            yield printable(f"  repeat: {one.difference.command}")
        if one.sms_difference is not None:
            yield printable(f"{one.shape}: {one.sms_difference}")
            yield printable(f"  repeat: {one.sms_difference.command}")
            yield printable(f"  and:    {one.sms_difference.command_against}")
        for failed in one.failed:
            yield printable(f"{one.name} under {failed.schedule}: {failed.reason}")
            yield printable(f"  repeat: {failed.command}")
        if one.refused:
            yield printable(f"{one.name}: not run: {one.refused}")
    for met in found.found:
        if met.finding.accepted is None or verbose:
            yield str(met.finding)
            where = f"first {met.shapes[0]} under {met.schedule}"
            yield printable(f"  in {met.runs} of {found.runs} runs, {where}")
            yield printable(f"  repeat: {met.command}")
    yield ", ".join(_summary(found))


def _row(found: Exploration, tried: Tried) -> tuple[object, ...]:
    if tried.refused:
        return (tried.name, 0, "-", "not run")
    if not tried.schedules:  # interrupted during the first run
        return (tried.name, 0, "-", "interrupted")
    differ = tried.difference is not None or tried.sms_difference is not None
    compared = tried.compared > 1 or (tried.compared and _compared_across_sms(found, tried))
    bits = "differ" if differ else "equal" if compared else "-"
    return (tried.name, len(tried.schedules), bits, "pass" if found.passed(tried) else "FAIL")


def _compared_across_sms(found: Exploration, tried: Tried) -> bool:
    """Whether the shape left outputs on GPUs of other numbers of SMs too."""
    return any(one.shape == tried.shape and one.sms != tried.sms and one.compared for one in found.tried)


def _summary(found: Exploration) -> Iterator[str]:
    from gdnbench.sim import Severity

    yield f"{found.runs} run{'' if found.runs == 1 else 's'}"
    if found.interrupted:
        yield "interrupted"
    if not found.runs:
        return
    differ = sum(one.difference is not None for one in found.tried)
    every = {one.shape for one in found.tried}
    by_sms = {one.shape for one in found.tried if one.sms_difference is not None}
    if differ:
        yield f"bits differ in {differ} of {len(found.tried)} shapes"
    if by_sms:
        yield f"bits of {len(by_sms)} of {len(every)} shapes depend on the number of SMs"
    if not differ and not by_sms:
        compared = any(one.compared > 1 or _compared_across_sms(found, one) for one in found.tried)
        yield "equal bits" if compared else "no bits compared"
    failed = sum(bool(one.failed) for one in found.tried)
    if failed:
        yield f"{failed} of {len(found.tried)} shapes failed"
    standing = Counter(one.finding.severity for one in found.found if one.finding.accepted is None)
    errors = standing[Severity.ERROR]
    yield f"{errors} error{'' if errors == 1 else 's'} found" if errors else "no error found"
    counts = {
        "to review": standing[Severity.REVIEW],
        "incomplete": standing[Severity.INCOMPLETE],
        "accepted": sum(one.finding.accepted is not None for one in found.found),
    }
    yield from (f"{count} {what}" for what, count in counts.items() if count)


def varied(texts: Iterable[str]) -> dict[str, list[str]]:
    """`["M=1,64", "K=8"]` -> {"M": ["1", "64"], "K": ["8"]}; BadInputError for anything else."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, named, values = text.partition("=")
        if not named or not name.isidentifier() or not all(values.split(",")) or name in found:
            raise BadInputError(f"--vary {text!r} is not NAME=VALUE,VALUE,... with a name of its own")
        found[name] = values.split(",")
    return found
