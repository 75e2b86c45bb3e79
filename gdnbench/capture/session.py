"""The hot path: what happens around a call of a captured function.

Nothing here may change what the program computes, prints or returns, nor how it ends: whatever fails on our
side is counted, the first failure is kept for the summary, and the call goes on uncaptured.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gdnbench.capture.adapter import Adapter, Target
from gdnbench.capture.layers import Layer, LayerNames, ScopeStack
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.pending import PendingRecord, open_record
from gdnbench.capture.recorder import Counts, Recorder
from gdnbench.capture.report import Report
from gdnbench.capture.selection import Selection
from gdnbench.provenance import BackgroundProvenance

_compiled: list[str] = []  # one entry for each call that was traced into a graph


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def count_compiled() -> bool:
    """Runs while a graph is traced and leaves nothing in it, neither a graph break nor a guard."""
    _compiled.append("call")
    return True


@dataclass(frozen=True, slots=True)
class CallSite:
    """A wrapped function and how its arguments are named."""

    adapter: Adapter
    target: Target
    function: Callable[..., Any]
    positional: tuple[str, ...]
    defaults: Mapping[str, Any]
    implementation: str | None

    @classmethod
    def of(cls, adapter: Adapter, target: Target, function: Callable[..., Any]) -> CallSite:
        parameters = inspect.signature(function).parameters.values()
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        return cls(
            adapter=adapter,
            target=target,
            function=function,
            positional=tuple(p.name for p in named if p.kind is not p.KEYWORD_ONLY),
            defaults={p.name: p.default for p in named if p.default is not p.empty},
            implementation=adapter.implementation(function),
        )

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        # What does not fit the signature is the function's to complain about.
        return {**self.defaults, **dict(zip(self.positional, args, strict=False)), **kwargs}


class Session:
    """One capture in this process: selects calls, copies their tensors, hands them to the recorder."""

    def __init__(
        self,
        store: Path,
        options: CaptureOptions,
        *,
        report: Report,
        on_first_record: Callable[[Path], None] | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._report = report
        self._on_first_record = on_first_record
        self._selection = Selection(options)
        self._layers = LayerNames()
        self._no_layer: dict[str, Layer] = {}  # of functions called outside any scope, by target
        self._scopes = ScopeStack()
        self._numbers = itertools.count()
        self._called: set[str] = set()
        self._recorder: Recorder | None = None
        self._lock = threading.Lock()
        self._provenance = BackgroundProvenance()
        self.counts = Counts()
        self.active = True
        atexit.register(self.close)
        _sessions.add(self)

    def wrap_target(
        self, adapter: Adapter, target: Target, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        site = CallSite.of(adapter, target, function)

        @functools.wraps(function)
        def captured(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                count_compiled()
                return function(*args, **kwargs)
            return self.call(site, args, kwargs)

        return captured

    def wrap_scope(
        self, adapter: Adapter, target: Target, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def scoped(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self.active:
                return function(module, *args, **kwargs)
            with self._scopes.inside(module):
                return function(module, *args, **kwargs)

        return scoped

    def call(self, site: CallSite, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function, and record the call if it is selected and the outermost of the captured ones."""
        scopes = self._scopes
        if scopes.capturing or not self.active:
            return site.function(*args, **kwargs)
        arguments = site.arguments(args, kwargs)
        pending = self._before(site, arguments)
        scopes.capturing = True
        try:
            result = site.function(*args, **kwargs)
        except BaseException as error:
            if pending is not None:
                self._raised(pending, error)
            raise
        finally:
            scopes.capturing = False
        if pending is not None:
            self._after(site, pending, arguments, result)
        return result

    def _before(self, site: CallSite, arguments: Mapping[str, Any]) -> PendingRecord | None:
        try:
            if site.target.name not in self._called:
                self._called.add(site.target.name)
                self._report.note("called", target=site.target.name)
            module = self._scopes.module
            layer = self._layers.of(module) if module is not None else self._layer_without_scope(site)
            step, number = self._selection.step(layer), next(self._numbers)
            if self._selection.full:
                return None
            if _in_cuda_graph(arguments.values()):  # adapters may compute, which would become part of it
                self.counts.skipped_compiling += 1
                return None
            observation = site.adapter.before(site.target, arguments, module)
            if not self._selection.keeps(observation.op, layer):
                return None
            if _in_cuda_graph(seen.tensor for seen in observation.tensors.values()):
                self.counts.skipped_compiling += 1
                return None
            recorder = self._recorder_here()
            pending = open_record(
                observation,
                site.target.name,
                layer,
                number,
                step,
                self._options.full_pools,
                site.implementation,
                recorder.carried,
            )
            if self._options.sync:
                recorder.begin(pending)
            return pending
        except Exception as error:
            self.counts.fail(error)
            return None

    def _after(
        self, site: CallSite, pending: PendingRecord, arguments: Mapping[str, Any], result: Any
    ) -> None:
        try:
            pending.close(site.adapter.after(pending.observation, arguments, result))
            self._recorder_here().finish(pending)
        except Exception as error:
            self.counts.fail(error)

    def _raised(self, pending: PendingRecord, error: BaseException) -> None:
        """The call did not come back: its inputs are worth keeping all the more."""
        try:
            pending.close_unfinished(error)
            self._recorder_here().finish(pending)
        except Exception as own_error:
            self.counts.fail(own_error)

    def _layer_without_scope(self, site: CallSite) -> Layer:
        with self._lock:
            return self._no_layer.setdefault(site.target.name, Layer(site.target.function, None))

    def _recorder_here(self) -> Recorder:
        if self._recorder is None:
            with self._lock:
                if self._recorder is None:
                    recorder = Recorder(
                        self._store, self._options, self._provenance.result(), self._selection, self.counts
                    )
                    if self._on_first_record is not None:
                        self._on_first_record(self._store)
                    self._close_with_multiprocessing()
                    self._report.note("recording", segment=recorder.segment)
                    self._recorder = recorder
        return self._recorder

    def _close_with_multiprocessing(self) -> None:
        """A process forked by multiprocessing leaves without its exit handlers, but runs these."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self.close, exitpriority=0)

    def after_fork(self) -> None:
        """In a forked child: the journal is the parent's, and threads that hold locks are not here."""
        self._recorder = None
        self._lock = threading.Lock()
        self._layers.after_fork()
        self._selection.after_fork()
        self._scopes = ScopeStack()
        self.counts = Counts()

    @property
    def segment(self) -> str | None:
        """Where this process records in the store; None before the first record."""
        return self._recorder.segment if self._recorder is not None else None

    def close(self) -> None:
        """Write what is on its way and end the journal in order. Idempotent; never raises."""
        if not self.active:
            return
        self.active = False
        try:
            self.counts.skipped_compiling += len(_compiled)
            _compiled.clear()
            if self._recorder is not None:
                self._recorder.close()
            self._report.note("closed", **self.counts.summary())
        except Exception as error:
            self.counts.fail(error)


def _in_cuda_graph(values: Iterable[object]) -> bool:
    """A graph being captured must not hold our copies, and replays of it run no hook."""
    cuda = any(isinstance(value, Tensor) and value.is_cuda for value in values)
    return cuda and torch.cuda.is_current_stream_capturing()


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session.after_fork()


os.register_at_fork(after_in_child=_after_fork)
