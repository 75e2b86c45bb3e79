# SPDX-License-Identifier: Apache-2.0
"""Runs `gdnbench capture STORE -- CMD`: starts the command captured and prints the result on stderr."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from gdnbench.capture import adapters
from gdnbench.capture.control import send_to_switchable, signal_number
from gdnbench.capture.destination import check_objects, local_store
from gdnbench.capture.filter_expr import When
from gdnbench.capture.options import OPTIONS_VARIABLE, STORE_VARIABLE, CaptureOptions
from gdnbench.capture.outcome import Outcome
from gdnbench.capture.progress import ProgressLine
from gdnbench.capture.report import read_report
from gdnbench.capture.runtime import start_sealer
from gdnbench.capture.sealing import SealingThread
from gdnbench.errors import BadInputError
from gdnbench.printable import printable
from gdnbench.store.address import Address, checked_url, is_url
from gdnbench.store.layout import (
    INCOMING,
    JOURNAL,
    METADATA,
    SEGMENTS,
    check_root,
    parse_node,
    refuse_links,
)
from gdnbench.store.sealer import Progress
from gdnbench.store.upload import uploading

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_captured(
    store: Address,
    command: Sequence[str],
    options: CaptureOptions,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    judged: bool = False,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Run `command` and capture its calls into `store`; returns the exit status. `variables` are added to its
    environment.

    The status is the child's own if that is not 0 (128 + N if signal N ended it), else 3 if some data has not
    reached the object store, else 1 if nothing was captured, else 0. The child inherits the standard streams;
    capture writes to stderr only. `on_progress` defaults to a progress line on stderr if that is a terminal.
    `judged`: the caller judges the records and then deletes `store`, so that nothing seals the calls of
    processes that outlive the command.

    Raises, before anything runs: BadInputError for a missing or unknown command, a `--target` that names
    nothing, a path that cannot become a store; StoreError for a store of another kind or a newer format; for
    a URL, what `check_objects` raises.
    """
    if not command:
        raise BadInputError(
            "no command to capture; write it after --, as in: gdnbench capture STORE -- python X.py"
        )
    options.check_switch()
    url = checked_url(str(store)) if is_url(store) else None
    if url is not None:
        check_objects(url, options)
    place = local_store(store)
    check_store(place)
    if options.when is not None:
        _check_names(When(options.when))
    known, _ = adapters.load_adapters(options)
    targets = [target.name for _, target in adapters.select_targets(known, options.target)]
    targets += adapters.unknown_targets(known, options.target)
    line = ProgressLine(sys.stderr)
    with tempfile.TemporaryDirectory(prefix="gdnbench-") as folder:
        report = Path(folder) / "report"
        sealing = SealingThread(place, report, on_progress or line.show)
        # The switching signal stays handled until sealing ends: its sender does not know when the command
        # ended.
        with _switching(options.signal, report), uploading(place) as upload:
            with _forwarding() as forward_to:
                captured = _environment(place, replace(options, report=str(report)))
                child = _start(command, {**captured, **(variables or {})})
                forward_to(child)
                sealing.start()
                status = child.wait()
            sealing.finish()
            line.clear()
            outcome = Outcome.from_notes(
                place, status, sealing.progress, targets, read_report(report), sealing.error, judged=judged
            )
    if upload is not None:
        outcome = replace(outcome, not_arrived=upload.not_arrived())
    if outcome.unsealed and not judged:
        # A process that outlives the command goes on recording, and needs a sealer.
        start_sealer(place)
    for text in outcome.summary(place if url is None or outcome.not_arrived else url):
        print(f"gdnbench: {printable(text)}", file=sys.stderr)
    return outcome.exit_status


def _check_names(when: When) -> None:
    from gdnbench.capture.trigger import known_names, tensor_names  # imports torch

    when.check_names(known_names(), tensor_names())


def check_store(store: Path) -> None:
    """Check, before the command runs, that `store` can be written to. BadInputError or StoreError if not."""
    refuse_links(*(store / name for name in (INCOMING, JOURNAL, SEGMENTS)))
    if store.is_dir() and not os.access(store, os.R_OK | os.W_OK | os.X_OK):
        raise BadInputError(f"{store} cannot be written; capture into another path")
    if (store / METADATA).is_file():
        _, attributes = parse_node((store / METADATA).read_bytes(), "group", str(store))
        kind = check_root(attributes, store)
        if kind != "capture":
            raise BadInputError(f"{store} is a {kind} store; capture into another path")
    elif store.exists():
        if not store.is_dir():
            raise BadInputError(f"{store} is a file; capture into a folder")
        strange = sorted({entry.name for entry in store.iterdir()} - {INCOMING, JOURNAL})
        if strange:
            raise BadInputError(f"{store} is not a store and holds {strange[0]}; capture into another path")
    else:
        try:
            store.mkdir(parents=True)
        except OSError as error:
            raise BadInputError(
                f"{store} cannot be made: {error.strerror}; capture into another path"
            ) from None


def _environment(store: Path, options: CaptureOptions) -> Mapping[str, str]:
    return {**os.environ, STORE_VARIABLE: str(store), OPTIONS_VARIABLE: options.to_json()}


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=environment)
    except OSError as error:
        raise BadInputError(
            f"{command[0]!r} cannot be run: {error.strerror}; write the command after --"
        ) from None


@contextmanager
def _forwarding() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Forward signals to the child, and survive them to seal what it recorded.

    Yields a function to call with the child once it runs; earlier signals are forwarded then. Signals that
    this process ignores (nohup) stay ignored, as the child inherits that.
    """
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if not children:
            early.append(number)
        elif number != signal.SIGINT or not _terminal_signals_us():
            children[0].send_signal(number)  # a Ctrl-C in the terminal already reaches the child

    def forward_to(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            child.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield forward_to
        return
    previous = {
        number: signal.signal(number, forward)
        for number in _FORWARDED
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield forward_to
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _switching(name: str | None, report: Path) -> Iterator[None]:
    """Forward the switching signal to every captured process that handles it. It would end any other
    process."""
    if name is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        send_to_switchable(number, read_report(report))

    number = signal_number(name)
    previous = signal.signal(number, pass_on)
    try:
        yield
    finally:
        signal.signal(number, previous)


def _terminal_signals_us() -> bool:
    """Whether this process and its child are in the foreground of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
