# SPDX-License-Identifier: Apache-2.0
"""`gdnbench synth`: made records. Its options are the keyword arguments of the operation's own `synth`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.arguments import option_texts
from gdnbench.cli.console import print_line, progress


def synth(
    context: typer.Context,
    store: Annotated[Path, typer.Argument(help="Store to write. Created if missing, else extended.")],
    op: Annotated[str, typer.Option(help="Operation to make records of, e.g. gdn_prefill.")],
    count: Annotated[
        int, typer.Option(min=1, help="Number of records to make; each uses the next seed.")
    ] = 1,
) -> None:
    """Make records of an operation from the operation's options, such as --seqlens 1,63,500 --heads 2,4.

    `gdnbench synth STORE --op NAME --options` lists them with their defaults and meanings.
    """
    from gdnbench.ops import operation
    from gdnbench.options import describe_options
    from gdnbench.store.writer import StoreWriter
    from gdnbench.synth import draft, options_from_text, synthesise

    if context.args == ["--options"]:
        print(describe_options(operation(op).synth))
        return
    options = options_from_text(op, option_texts(context.args))
    first = int(options.pop("seed", 0))
    # The first call is made before the store: options that make no valid call leave no folder behind.
    synthesise(op, **options, seed=first)
    with progress("synth") as advance, StoreWriter(store, kind="synth") as writer:
        for index in range(count):
            call = synthesise(op, **options, seed=first + index)
            writer.write(f"{index:010d}", [draft(op, call, index=index)], first=index)
            advance(index + 1, count)
    print_line(f"{count} {op} record{'' if count == 1 else 's'} in {store}")
