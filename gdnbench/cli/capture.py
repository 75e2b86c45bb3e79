"""`gdnbench capture`: run a program with its kernel calls recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.arguments import byte_count, zstd_level


def capture(
    store: Annotated[
        str, typer.Argument(help="Store to record into, a folder or URL; made if missing, added to if not.")
    ],
    command: Annotated[list[str], typer.Argument(help="After --: the program and its arguments.")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="Framework, module or module:function to hook, globs allowed; may repeat."),
    ] = None,
    op: Annotated[list[str] | None, typer.Option(help="Operation to keep; may repeat.")] = None,
    layer: Annotated[
        list[str] | None, typer.Option(help="Layer to keep: 3, 0-3 or a name (globs); may repeat.")
    ] = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(help="File with tables of paged callers to hook, TOML or JSON; may repeat."),
    ] = None,
    first: Annotated[int | None, typer.Option(min=1, help="Keep the first N calls of each layer.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Keep every N-th call of each layer.")] = 1,
    when: Annotated[
        str | None,
        typer.Option(help="Keep calls for which this holds: an expression over scalars and shapes."),
    ] = None,
    on_nonfinite: Annotated[
        bool,
        typer.Option("--on-nonfinite", help="Keep calls with a NaN or infinity in what they got or gave."),
    ] = False,
    on_mismatch: Annotated[
        float | None,
        typer.Option(help="Keep calls whose outputs are over so many times torch's error; judged beside."),
    ] = None,
    around: Annotated[
        int, typer.Option(min=0, help="Keep N calls of each layer before and after one that is kept so.")
    ] = 0,
    ring_bytes: Annotated[
        str, typer.Option(help="Bytes that the calls before may take while they wait.")
    ] = "256MiB",
    paused: Annotated[
        bool, typer.Option("--paused", help="Begin without recording, until switched on.")
    ] = False,
    control: Annotated[
        Path | None,
        typer.Option(help="File to switch with at run time: it says on, off, once or next N."),
    ] = None,
    signal: Annotated[
        str | None, typer.Option(help="Signal that switches between on and off, e.g. USR2.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(help="Bytes that a process may record, e.g. 2GiB; the program goes on.")
    ] = None,
    when_over: Annotated[
        str, typer.Option(help="Then: stop recording, or drop-oldest, which keeps the latest on disk.")
    ] = "stop",
    full_pools: Annotated[bool, typer.Option("--full-pools", help="Keep whole state pools.")] = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="Inputs on disk before each call: a crash or hang leaves them.")
    ] = False,
    graphs: Annotated[
        bool,
        typer.Option("--graphs/--no-graphs", help="Put copies into CUDA graphs, and record their replays."),
    ] = True,
    break_graphs: Annotated[
        bool,
        typer.Option("--break-graphs", help="Have torch.compile leave captured functions to Python."),
    ] = False,
    when_full: Annotated[
        str, typer.Option(help="When the queue is full: block the program, or drop records.")
    ] = "block",
    queue: Annotated[str, typer.Option(help="Bytes that may wait to be sealed, e.g. 4GiB.")] = "4GiB",
    cache_layout: Annotated[
        str,
        typer.Option(help="Layout for rows of a cache without pages; those in FP8 round, and keep no o."),
    ] = "bfloat16",
    block_size: Annotated[int, typer.Option(help="Tokens of a page that such rows are laid into.")] = 64,
    zstd: Annotated[str, typer.Option(help="Compression level of the store, 1 to 9, or off.")] = "1",
) -> None:
    """Run a program, unchanged, and record what it gave to the kernels of its attention layers.

    The exit status is the program's own if that is not 0; 1 if nothing was captured.
    """
    from gdnbench.capture.launch import run_captured
    from gdnbench.capture.options import CaptureOptions

    options = CaptureOptions(
        target=tuple(target or ()),
        op=tuple(op or ()),
        layer=tuple(layer or ()),
        table=tuple(str(path.absolute()) for path in table or ()),
        first=first,
        every=every,
        when=when,
        on_nonfinite=on_nonfinite,
        around=around,
        ring_bytes=byte_count(ring_bytes, "--ring-bytes"),
        paused=paused,
        control=None if control is None else str(control.absolute()),
        signal=signal,
        max_bytes=None if max_bytes is None else byte_count(max_bytes, "--max-bytes"),
        when_over=when_over,  # type: ignore[arg-type]  # as `when_full`
        full_pools=full_pools,
        sync=sync,
        graphs=graphs,
        break_graphs=break_graphs,
        when_full=when_full,  # type: ignore[arg-type]  # CaptureOptions refuses any other word
        queue_bytes=byte_count(queue, "--queue"),
        cache_layout=cache_layout,
        block_size=block_size,
        zstd=zstd_level(zstd),
    )
    if on_mismatch is not None:
        from gdnbench.mismatch.run import run_judged

        sys.exit(run_judged(store, command, options, on_mismatch))
    sys.exit(run_captured(store, command, options))
