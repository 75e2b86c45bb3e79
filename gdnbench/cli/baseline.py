# SPDX-License-Identifier: Apache-2.0
"""`gdnbench baseline`: the errors that a suite accepts, who accepted them and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from gdnbench.cli.console import print_json, print_line, table
from gdnbench.cli.groups import CommandGroup
from gdnbench.cli.registry import BASELINE
from gdnbench.cli.suite import SUITE
from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.suite.baseline import Baseline

SHOWN = 20  # changes of an update told one by one


class Changes(CommandGroup):
    """`gdnbench baseline`."""

    headings: ClassVar = {"Commands": BASELINE}


app = typer.Typer(
    cls=Changes,
    help="Show and change the errors that a suite accepts.",
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback()
def group() -> None:
    """Runs before every command of the group, which has no options of its own."""


def update(
    suite: Annotated[Path, typer.Argument(help=SUITE)],
    results: Annotated[Path, typer.Argument(help="Folder that `gdnbench suite -o` wrote.")],
    reason: Annotated[
        str, typer.Option(help="Reason why these errors are acceptable; `baseline history` shows it.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print the changes as a JSON list.")] = False,
) -> None:
    """Accept errors of a run that are new, or worse or better than accepted ones by the suite's factor."""
    from gdnbench.suite.folder import suite_at
    from gdnbench.suite.update import update_baseline

    asked = suite_at(suite)
    changes = update_baseline(asked, results, reason)
    if json:
        print_json(changes)
        return
    for change in changes[:SHOWN]:
        print_line(_line(change))
    if len(changes) > SHOWN:
        print(f"and {len(changes) - SHOWN} more; `gdnbench baseline history` has them all")
    print_line(f"{len(changes)} changed in {asked.baselines}" if changes else "nothing to change")


def show(
    suite: Annotated[Path, typer.Argument(help=SUITE)],
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """List the accepted errors."""
    from gdnbench.suite.baseline import NAMES

    baseline = _read(suite)
    rows = [
        {**dict(zip(NAMES, key, strict=True)), **found} for key, found in sorted(baseline.accepted.items())
    ]
    if json:
        print_json(rows)
        return
    columns = (*NAMES, "rms", "max_abs", "update")
    shown = [
        [f"{row[name]:.3g}" if name in columns[5:7] else row.get(name) for name in columns] for row in rows
    ]
    print(table(columns, shown, right=columns[5:]))


def history(
    suite: Annotated[Path, typer.Argument(help=SUITE)],
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of lines.")] = False,
) -> None:
    """List what was accepted, when, at which commit and why, from the first update on."""
    baseline = _read(suite)
    if json:
        print_json(baseline.history)
        return
    for number, update in enumerate(baseline.history, 1):
        git = update.get("git") or {}
        commit = (
            f", commit {str(git.get('sha'))[:10]}{', changed' if git.get('dirty') else ''}" if git else ""
        )
        changes = update.get("changes", [])
        print_line(f"{number}: {update.get('time')}{commit}: {update.get('reason')}")
        for change in changes:
            print_line(f"  {_line(change)}")


def _read(suite: Path) -> Baseline:
    from gdnbench.suite.baseline import Baseline
    from gdnbench.suite.folder import suite_at

    path = suite_at(suite).baselines
    if path is None:
        raise BadInputError(f"{suite} has no baselines: give it a key, baselines = 'FILE.json'")
    if not path.exists():
        raise BadInputError(
            f"{path} is not there yet: `gdnbench baseline update` makes it of a suite's results"
        )
    return Baseline.read(path)


def _line(change: dict[str, Any]) -> str:
    """`captures/a.zarr torch cpu 1-2-3/0 o: RMS 1e-3 -> 5e-4, largest ...`"""
    from gdnbench.suite.baseline import NAMES

    old, new = change.get("from"), change.get("to") or {}
    pairs = (("rms", "RMS"), ("max_abs", "largest"))
    told = (f"{words} {_error(old, name)} -> {_error(new, name)}" for name, words in pairs)
    return f"{' '.join(str(change.get(name)) for name in NAMES)}: {', '.join(told)}"


def _error(errors: Any, name: str) -> str:
    value = errors.get(name) if isinstance(errors, dict) else None
    return f"{value:.3g}" if isinstance(value, float) else "none"
