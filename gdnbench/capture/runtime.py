# SPDX-License-Identifier: Apache-2.0
"""The captures that are running in this process, and how each is started."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdnbench.capture import adapters
from gdnbench.capture.adapter import Adapter, Target
from gdnbench.capture.adapters.uncaptured import UncapturedFunctions
from gdnbench.capture.control import Switch, SwitchControl
from gdnbench.capture.destination import check_url_options, local_store
from gdnbench.capture.hook import AfterImport
from gdnbench.capture.options import OPTIONS_VARIABLE, STORE_VARIABLE, CaptureOptions
from gdnbench.capture.patching import Patch, Patcher
from gdnbench.capture.report import Report
from gdnbench.capture.steps import parts_of_steps_of, steps_of
from gdnbench.store.address import Address, checked_url, folder_to_write, is_url

if TYPE_CHECKING:
    from gdnbench.capture.session import Session

_SEALER_START_SECONDS = 10.0


class Capture:
    """Options, wrapped functions and, from the first import of a target on, the session that records.

    The session needs torch, so it is created only when a captured module is imported.
    """

    def __init__(
        self,
        store: Address,
        options: CaptureOptions,
        *,
        report: Report,
        on_first_record: Callable[[Path], None] | None,
    ) -> None:
        self._store = store
        self._options = options
        self._report = report
        self._on_first_record = on_first_record
        self._session: Session | None = None
        self._lock = threading.RLock()
        self._remote = SwitchControl(Switch(options.paused), options, report)
        found, problems = adapters.load_adapters(options)
        for problem in problems:
            report.note("problem", text=problem)
        selected = adapters.select_targets(found, options.target)
        chosen = {adapter.framework for adapter, _ in selected}
        scopes = [(adapter, s) for adapter in found if adapter.framework in chosen for s in adapter.scopes]
        steps = [(adapter, step) for adapter in found for step in steps_of(adapter)]
        parts = [(adapter, part) for adapter in found for part in parts_of_steps_of(adapter)]
        self.patcher = Patcher(
            [Patch(adapter, target, self._wrap_target) for adapter, target in selected]
            + [Patch(adapter, scope, self._wrap_scope) for adapter, scope in scopes]
            + [Patch(adapter, step, self._wrap_step) for adapter, step in steps]
            + [Patch(adapter, part, self._wrap_part) for adapter, part in parts],
            imported=lambda module: report.note("imported", module=module),
            failed=lambda text: report.note("problem", text=text),
            uncaptured=adapters.select_uncaptured(options.op),
            wrap_uncaptured=self._wrap_uncaptured,
        )

    @property
    def session(self) -> Session:
        if self._session is None:
            from gdnbench.capture.session import Session

            with self._lock:  # two threads may make the first calls at once
                if self._session is None:
                    self._session = Session(
                        local_store(self._store),
                        self._options,
                        report=self._report,
                        on_first_record=self._on_first_record,
                        remote=self._remote,
                    )
        return self._session

    def after_fork(self) -> None:
        """In a forked child: a thread that held the lock does not exist here."""
        self._lock = threading.RLock()

    def selects(self, adapter: Adapter, target: Target) -> bool:
        """Whether `--target` names this decorated function, which no adapter's table holds."""
        patterns = self._options.target
        return not patterns or any(adapters.names_target(p, adapter.framework, target) for p in patterns)

    def _wrap_target(
        self, adapter: Adapter, target: Target, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        wrapper = self.session.wrap_target(adapter, target, function)
        self._report.note("wrapped", target=target.name)
        return wrapper

    def _wrap_scope(
        self, adapter: Adapter, target: Target, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        return self.session.wrap_scope(adapter, target, function)

    def _wrap_step(
        self, adapter: Adapter, target: Target, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        return self.session.wrap_step(adapter, target, function)

    def _wrap_part(
        self, adapter: Adapter, target: Target, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        return self.session.wrap_part_of_step(adapter, target, function)

    def _wrap_uncaptured(
        self, entry: UncapturedFunctions, target: Target, function: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        patterns = self._options.target
        if patterns and not any(adapters.names_target(p, entry.framework, target) for p in patterns):
            return None
        return self.session.wrap_uncaptured(f"{target.module}.{target.function}", entry.reason, function)


# Running captures, innermost last.
running: list[Capture] = []


def _after_fork() -> None:
    for capture in running:
        capture.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def innermost() -> Capture | None:
    """The capture that records calls of decorated functions."""
    return running[-1] if running else None


def start_from_environment(environment: Mapping[str, str]) -> Mapping[str, AfterImport]:
    """Start the capture that the environment requests; returns the functions to call after imports, by module
    name.

    BadInputError for an invalid option, URL or path, and for options that a URL does not support.
    """
    options = CaptureOptions.from_environment(environment)
    report = Report(options.report)
    report.note("started")
    address = environment[STORE_VARIABLE]
    if is_url(address):
        check_url_options(checked_url(address), options)
    capture = Capture(
        address if is_url(address) else folder_to_write(address).absolute(),
        options,
        report=report,
        on_first_record=start_sealer if options.report is None else _if_alone(Path(options.report)),
    )
    running.append(capture)
    capture.patcher.patch_loaded()  # modules that another package's .pth file imported
    return capture.patcher.after_import


def _if_alone(report: Path) -> Callable[[Path], None]:
    """A function that starts a sealer if the launcher seals nothing: it has ended or runs on another host.

    `report` is the file that the launcher keeps while it runs.
    """

    def start(store: Path) -> None:
        if not os.path.exists(report):  # also True for another user's file
            start_sealer(store)

    return start


def start_sealer(store: Path) -> None:
    """Start the process that moves journals into `store`; it ends once they are closed and sealed.

    A shell starts it and is waited for here, so that the program never finds a child that it did not start.
    """
    environment = {
        name: value for name, value in os.environ.items() if name not in (STORE_VARIABLE, OPTIONS_VARIABLE)
    }
    command = '"$0" -P -m gdnbench.store.sealer "$1" >/dev/null 2>&1 </dev/null &'
    subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, str(store)],
        env=environment,
        start_new_session=True,
        timeout=_SEALER_START_SECONDS,
        check=True,
    )
