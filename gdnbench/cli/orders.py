# SPDX-License-Identifier: Apache-2.0
"""`--explore all` and `--schedules all`: all orders of the synchronisation of each launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import typer

from gdnbench.cli.console import print_json, print_lines
from gdnbench.errors import BadInputError, Exit
from gdnbench.printable import printable

if TYPE_CHECKING:
    from gdnbench.sim.protocol import CheckedLaunch

ALL = "all"


def schedule_count(option: str, text: str) -> int | None:
    """The number of schedules of `option`, None for "all". BadInputError for another text."""
    if text == ALL:
        return None
    if not text.isdecimal() or not int(text):
        raise BadInputError(f"{option} {text!r}: a number of schedules from 1 on, or all")
    return int(text)


def conclude_orders(
    found: Mapping[str, Sequence[CheckedLaunch]],
    failed: Mapping[str, str],
    *,
    faulty: bool = False,
    json: bool,
    verbose: bool,
) -> NoReturn:
    """Print what was found of the launches of each call by its name, and why calls `failed`; end the
    command. `faulty`: a recorded run did something illegal."""
    from gdnbench.sim.protocol import orders_text

    launches = [launch for each in found.values() for launch in each]
    broken = any(launch.broken for launch in launches)
    proved = bool(launches) and all(launch.proved for launch in launches)
    status = Exit.MISMATCH if broken or faulty else Exit.PASS if proved and not failed else Exit.CANNOT_RUN
    if json:
        calls = {name: [launch.as_json() for launch in each] for name, each in found.items()}
        print_json({"ok": status == Exit.PASS, "orders": calls, "failed": dict(failed)})
    else:
        for name, each in found.items():
            print_lines(
                "\n".join([*([name] if name else []), *map(printable, orders_text(each, verbose=verbose))])
            )
        for name, reason in failed.items():
            print_lines("\n".join(map(printable, f"{name}: {reason}".splitlines())))
        if not launches:
            print_lines("no launch: nothing was checked")
    raise typer.Exit(status)
