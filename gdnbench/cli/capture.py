# SPDX-License-Identifier: Apache-2.0
"""`gdnbench capture`: run a program with its kernel calls recorded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnbench.cli.arguments import byte_count, zstd_level
from gdnbench.cli.sim_program import simulated_status
from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.capture.options import CaptureOptions


def capture(
    store: Annotated[
        str, typer.Argument(help="Store to record into: a folder or URL. Created if missing, else extended.")
    ],
    command: Annotated[list[str], typer.Argument(help="Program to run and its arguments, after --.")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="Hook this framework, module or module:function, e.g. vllm (globs). Repeatable."),
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option(help="Record only this operation, e.g. gdn_decode. Repeatable.")
    ] = None,
    layer: Annotated[
        list[str] | None, typer.Option(help="Record only these layers: 3, 0-3 or a name (globs). Repeatable.")
    ] = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(help="TOML or JSON file that describes further functions to hook. Repeatable."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Record at most N calls of each layer; triggers (--when, --on-...) count only the calls that"
            " they kept. Default: no limit.",
        ),
    ] = None,
    every: Annotated[
        int, typer.Option(min=1, help="Record every N-th call of each layer, beginning with the first.")
    ] = 1,
    when: Annotated[
        str | None,
        typer.Option(help="Record calls for which this expression is true, e.g. 'T > 8192'."),
    ] = None,
    on_nonfinite: Annotated[
        bool,
        typer.Option(
            "--on-nonfinite", help="Record calls with a NaN or infinity in an input, output or state."
        ),
    ] = False,
    on_lineage: Annotated[
        bool,
        typer.Option(
            "--on-lineage",
            help="Record calls that read another state than the one their request last wrote; see"
            " gdnbench lineage.",
        ),
    ] = False,
    on_mismatch: Annotated[
        float | None,
        typer.Option(
            help="Record calls whose outputs exceed this multiple of torch's error, e.g. 2. Needs a folder as"
            " the store; not with another trigger or --digests."
        ),
    ] = None,
    around: Annotated[
        int,
        typer.Option(
            min=0,
            help="Also record N calls of each layer before and after one that --when, --on-nonfinite or"
            " --on-lineage kept.",
        ),
    ] = 0,
    ring_bytes: Annotated[
        str, typer.Option(help="Buffer at most this many bytes of earlier calls for --around, e.g. 1GiB.")
    ] = "256MiB",
    paused: Annotated[
        bool,
        typer.Option(
            "--paused", help="Start switched off. Needs --control or --signal, which switches recording on."
        ),
    ] = False,
    control: Annotated[
        Path | None,
        typer.Option(
            help="Read on, off, once or next N from this file: at the start, then every 50 ms from the first"
            " captured call on."
        ),
    ] = None,
    signal: Annotated[
        str | None, typer.Option(help="Toggle recording on this signal: USR1, USR2, WINCH or URG.")
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            help="Limit what each process records, e.g. 2GiB; the program continues. With --on-mismatch:"
            " limit the calls that wait to be judged."
        ),
    ] = None,
    when_over: Annotated[
        str,
        typer.Option(
            help="At --max-bytes: stop recording, or drop-oldest, which deletes the oldest batches (needs"
            " --max-bytes, and a folder as the store)."
        ),
    ] = "stop",
    digests: Annotated[
        bool,
        typer.Option(
            "--digests",
            help="Keep no tensor: only who read and wrote which state, with digests, for gdnbench lineage.",
        ),
    ] = False,
    digest_sample: Annotated[
        int,
        typer.Option(
            min=1,
            help="With --digests: digest only every N-th 128 bytes of a state, an odd number, e.g. 101.",
        ),
    ] = 1,
    full_pools: Annotated[
        bool,
        typer.Option(
            "--full-pools", help="Record whole state pools. Default: only the rows that the call can touch."
        ),
    ] = False,
    sync: Annotated[
        bool,
        typer.Option(
            "--sync",
            help="Write the inputs to disk before each call, so that they survive a crash or hang. Not with"
            " --when, --on-nonfinite, --on-lineage or --digests.",
        ),
    ] = False,
    graphs: Annotated[
        bool,
        typer.Option(
            "--graphs/--no-graphs", help="Record the calls inside CUDA graphs each time a graph is replayed."
        ),
    ] = True,
    break_graphs: Annotated[
        bool,
        typer.Option(
            "--break-graphs",
            help="Break the graphs of torch.compile at captured functions, to record their calls.",
        ),
    ] = False,
    when_full: Annotated[
        str,
        typer.Option(
            help="If the queue is full, or 1 GiB of copies are on their way from a GPU: block the program, or"
            " drop records."
        ),
    ] = "block",
    queue: Annotated[
        str, typer.Option(help="Limit the queue of bytes that are not in the store yet, e.g. 1GiB.")
    ] = "4GiB",
    cache_layout: Annotated[
        str,
        typer.Option(
            help="Layout of unpaged caches: bfloat16, per_token_scale or fp8_ds_mla. FP8 keeps no outputs."
        ),
    ] = "bfloat16",
    block_size: Annotated[
        int, typer.Option(help="Tokens in a page that --cache-layout writes: 16, 32, 64, 128 or 256.")
    ] = 64,
    zstd: Annotated[
        str, typer.Option(help="Compress the store with zstd at this level, 1 to 9, or off.")
    ] = "1",
    virtual: Annotated[
        str | None,
        typer.Option(
            metavar="MACHINE",
            help="Give the program a virtual GPU, whose kernels are simulated: b200 or sm_100a, b300 or"
            " sm_103a, h200 or sm_90a, or h100.",
        ),
    ] = None,
    sms: Annotated[
        int | None, typer.Option(min=1, help="With --virtual: how many SMs the GPU has, e.g. 4.")
    ] = None,
) -> None:
    """Run a program, unchanged, and record the calls of its attention kernels.

    The exit status is the program's own if that is not 0; 1 if nothing was captured; 3 if data has not
    arrived at the object store or the judging of --on-mismatch failed. With --virtual also 1 if a kernel did
    something illegal, and 3 if something was refused, and the program went on.
    """
    from gdnbench.capture.options import CaptureOptions

    if sms is not None and virtual is None:
        raise BadInputError("--sms is the number of SMs of a virtual GPU: give --virtual MACHINE too")
    options = CaptureOptions(
        target=tuple(target or ()),
        op=tuple(op or ()),
        layer=tuple(layer or ()),
        table=tuple(str(path.absolute()) for path in table or ()),
        first=first,
        every=every,
        when=when,
        on_nonfinite=on_nonfinite,
        on_lineage=on_lineage,
        around=around,
        ring_bytes=byte_count(ring_bytes, "--ring-bytes"),
        paused=paused,
        control=None if control is None else str(control.absolute()),
        signal=signal,
        max_bytes=None if max_bytes is None else byte_count(max_bytes, "--max-bytes"),
        when_over=when_over,  # type: ignore[arg-type]  # as `when_full`
        digests=digests,
        digest_sample=digest_sample,
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
    if virtual is None:
        sys.exit(_run(store, command, options, on_mismatch, {}))
    from gdnbench.sim.virtual import Request, program_log

    with program_log(Request(virtual, sms)) as log:
        status = _run(store, command, options, on_mismatch, log.environment)
        sys.exit(simulated_status(log.read(), status))


def _run(
    store: str,
    command: list[str],
    options: CaptureOptions,
    on_mismatch: float | None,
    variables: Mapping[str, str],
) -> int:
    if on_mismatch is not None:
        from gdnbench.mismatch.run import run_judged

        return run_judged(store, command, options, on_mismatch, variables)
    from gdnbench.capture.launch import run_captured

    return run_captured(store, command, options, variables=variables)
