"""`gdnbench synth`: made records. Its options are the keyword arguments of the operation's own `synth`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnbench.cli.console import progress
from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench_kernels.contract import Operation


def synth(
    context: typer.Context,
    store: Annotated[Path, typer.Argument(help="Store to write; made if missing, added to if not.")],
    op: Annotated[str, typer.Option(help="The operation.")],
    count: Annotated[int, typer.Option(min=1, help="Records to make; each takes the next seed.")] = 1,
) -> None:
    """Make records of an operation from options of its own, such as --seqlens 1,63,500 --heads 2,4.

    `gdnbench synth STORE --op NAME --options` lists them with their defaults and meanings.
    """
    from gdnbench.ops import operation
    from gdnbench.store.writer import StoreWriter
    from gdnbench.synth import draft, options_from_text, synthesise

    if context.args == ["--options"]:
        print(describe(operation(op)))
        return
    options = options_from_text(op, texts(context.args))
    first = int(options.pop("seed", 0))
    # The first call is made before the store: options that make no valid call leave no folder behind.
    synthesise(op, **options, seed=first)
    with progress("synth") as advance, StoreWriter(store, kind="synth") as writer:
        for index in range(count):
            call = synthesise(op, **options, seed=first + index)
            writer.write(f"{index:010d}", [draft(op, call, index=index)], first=index)
            advance(index + 1, count)
    print(f"{count} {op} record{'' if count == 1 else 's'} in {store}")


def texts(arguments: list[str]) -> dict[str, str]:
    """`["--heads", "2,4", "--initial-state"]` -> {"heads": "2,4", "initial_state": "true"}."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        flag, given, value = rest.pop(0).partition("=")
        if not flag.startswith("--"):
            raise BadInputError(f"{flag!r} is no option; options of an operation are written --name VALUE")
        if not given:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        options[flag.removeprefix("--").replace("-", "_")] = value
    return options


def describe(found: Operation) -> str:
    """The options of an operation's `synth` with their defaults, then what its documentation says of them."""
    lines = []
    for parameter in inspect.signature(found.synth).parameters.values():
        default = parameter.default
        shown = ",".join(map(str, default)) or "none" if isinstance(default, tuple) else default
        lines.append(f"--{parameter.name.replace('_', '-')} (default {shown})")
    return "\n".join([*lines, "", inspect.getdoc(found.synth) or ""]).rstrip()
