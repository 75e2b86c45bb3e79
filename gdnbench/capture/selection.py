# SPDX-License-Identifier: Apache-2.0
"""The selection filters: which calls are kept."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from fnmatch import fnmatchcase

from gdnbench.capture.control import Switch
from gdnbench.capture.layers import Layer
from gdnbench.capture.options import LAYER_INDICES, CaptureOptions


def layer_matches(pattern: str, layer: Layer) -> bool:
    """Whether `pattern` names `layer`: an index ("3"), an inclusive range of indices ("0-3") or a glob of its
    name."""
    if found := LAYER_INDICES.fullmatch(pattern):
        low, high = found.groups()
        return layer.index is not None and int(low) <= layer.index <= int(high or low)
    return fnmatchcase(layer.name, pattern)


class Selection:
    """Applies `--op`, `--layer`, `--first`, `--every`, `--max-bytes` and the pause switch. Thread safe.

    `--first` and `--every` count, for each layer, the calls that pass the other filters, so that every layer
    keeps the same steps. With a trigger, `--first` counts the calls that the trigger held for. `--max-bytes`
    ends the capture of this process at the first record that does not fit.
    """

    def __init__(self, options: CaptureOptions, switch: Switch | None = None) -> None:
        self.switch = Switch(options.paused) if switch is None else switch
        self._triggered = options.triggered
        self._waits = options.around > 0  # `--around` may keep calls of a layer past its own `--first`
        self._ops = frozenset(options.op)
        self._layers = tuple(part for pattern in options.layer for part in pattern.split(",") if part)
        self._first = options.first
        self._every = options.every
        self._whole = options.first is None and options.every == 1 and not options.triggered
        self._bytes_left = options.max_bytes if options.when_over == "stop" else None
        self.full = False  # `--max-bytes` was reached
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def step(self, layer: Layer) -> int:
        """Count a call of `layer`; returns the number of its earlier calls."""
        with self._lock:
            layer.calls += 1
            return layer.calls - 1

    def step_if_due(self, layer: Layer, operations: frozenset[str] | None) -> int | None:
        """Count a call of `layer` before its adapter inspects it; its step, or None if the call is not kept
        in any case.

        `operations`: the operations that the call can be; None if unknown. A call between two that `--every`
        keeps is counted as eligible here. A call that is due is counted in `keeps`: if it cannot be recorded,
        the next call is due.
        """
        with self._lock:
            step = layer.calls
            layer.calls += 1
            if self.full:
                return None
            if self.switch.off:
                layer.eligible += 1  # as in `pass_by`
                return None
            if not self._keeps_layer(layer):
                return None
            if self._ops and operations is not None and self._ops.isdisjoint(operations):
                return None
            if not self._waits and self._has_first(layer):
                return None
            if self._ops and (operations is None or not operations <= self._ops):
                return step  # only its arguments tell whether it counts
            if layer.eligible % self._every or self.switch.spent(layer):
                layer.eligible += 1
                return None
            return step

    @property
    def keeps_all(self) -> bool:
        """Whether each call that `passes` is kept now, so that `replayed` may count it."""
        switch = self.switch
        return self._whole and not self.full and not switch.off and switch.limit is None

    def replayed(self, layers: Sequence[Layer]) -> list[int]:
        """Count a call of each layer that is kept; returns the numbers of their earlier calls."""
        steps = []
        with self._lock:
            for layer in layers:
                steps.append(layer.calls)
                layer.calls += 1
                layer.eligible += 1
                layer.kept += 1
        return steps

    def passes(self, op: str, layer: Layer) -> bool:
        """Whether `--op` and `--layer` keep calls of `op` by `layer`."""
        return (not self._ops or op in self._ops) and self._keeps_layer(layer)

    def pass_by(self, layer: Layer) -> None:
        """Count a call while capture is paused, as one that passes the filters.

        If capture resumes in the middle of a step, later layers must not be one call ahead of the others.
        """
        with self._lock:
            layer.eligible += 1

    def keeps(self, op: str, layer: Layer) -> bool:
        """Count a call that passes the filters; whether it is kept or, with a trigger, evaluated."""
        if not self.passes(op, layer):
            return False
        with self._lock:
            ordinal = layer.eligible
            layer.eligible += 1
            if ordinal % self._every:
                return False
            if self._triggered:
                return self.switch.takes(layer)
            if self._has_first(layer) or not self.switch.takes(layer):
                return False
            layer.kept += 1
            return True

    def triggers(self, layer: Layer) -> bool:
        """Count a call that a trigger held for; whether it is kept."""
        with self._lock:
            if self._has_first(layer):
                return False
            layer.kept += 1
            return True

    def _has_first(self, layer: Layer) -> bool:
        return self._first is not None and layer.kept >= self._first

    def _keeps_layer(self, layer: Layer) -> bool:
        if not self._layers:
            return True
        if layer.named is None:
            layer.named = any(layer_matches(pattern, layer) for pattern in self._layers)
        return layer.named

    def has_room(self, nbytes: int) -> bool:
        """Subtract `nbytes` from the budget of `--max-bytes`; False, and `full` set, if they do not fit."""
        if self._bytes_left is None:
            return True
        with self._lock:
            if self.full or nbytes > self._bytes_left:
                self.full = True
                return False
            self._bytes_left -= nbytes
            return True
