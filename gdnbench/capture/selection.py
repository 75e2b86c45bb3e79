"""Which calls are kept."""

from __future__ import annotations

import re
import threading
from fnmatch import fnmatchcase

from gdnbench.capture.control import Switch
from gdnbench.capture.layers import Layer
from gdnbench.capture.options import CaptureOptions
from gdnbench.errors import BadInputError

_INDEX = re.compile(r"\d+(-\d+)?")


def layer_matches(pattern: str, layer: Layer) -> bool:
    """`pattern` is an index ("3"), a range of indices ("0-3", both ends in) or a glob of the layer's name."""
    if _INDEX.fullmatch(pattern):
        low, _, high = pattern.partition("-")
        return layer.index is not None and int(low) <= layer.index <= int(high or low)
    return fnmatchcase(layer.name, pattern)


class Selection:
    """`--op`, `--layer`, `--first`, `--every`, `--max-bytes`, and whether capture is paused. Thread safe.

    `--first` and `--every` count the calls of each layer that pass the other filters, so that a step that is
    kept has every layer. Beside a trigger `--first` counts those that it held for. `--max-bytes` ends the
    capture of this process at the first record that does not fit.
    """

    def __init__(self, options: CaptureOptions, switch: Switch | None = None) -> None:
        self.switch = Switch(options.paused) if switch is None else switch
        self._triggered = options.triggered
        self._waits = options.around > 0  # calls of a layer that has its own may be kept for another's
        self._ops = frozenset(options.op)
        self._layers = tuple(part for pattern in options.layer for part in pattern.split(",") if part)
        if options.layer and not self._layers:
            raise BadInputError(f"--layer {','.join(options.layer)!r} names no layer")
        self._first = options.first
        self._every = options.every
        self._bytes_left = options.max_bytes if options.when_over == "stop" else None
        self.full = False  # `--max-bytes` was reached
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def step(self, layer: Layer) -> int:
        """Count a call of `layer`; the number of those before it."""
        with self._lock:
            layer.calls += 1
            return layer.calls - 1

    def step_if_due(self, layer: Layer, operations: frozenset[str] | None) -> int | None:
        """Count a call of `layer` before anyone looks at it; its step, or None if it is not kept, whatever it
        is. `operations`: what it can be, None if that is not known.

        For `--every`, a call between those that are due counts here. One that is due counts in `keeps`: if it
        cannot be recorded, the next one is due.
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
                return step  # whether it counts can only be told from the call
            if layer.eligible % self._every or self.switch.spent(layer):
                layer.eligible += 1
                return None
            return step

    def passes(self, op: str, layer: Layer) -> bool:
        """Whether calls of `op` by `layer` are kept at all."""
        return (not self._ops or op in self._ops) and self._keeps_layer(layer)

    def pass_by(self, layer: Layer) -> None:
        """Count a call while capture is paused, as one that passes: when it goes on in the middle of a step,
        the layers behind it must not be a call ahead of the others."""
        with self._lock:
            layer.eligible += 1

    def keeps(self, op: str, layer: Layer) -> bool:
        """Count a call that passes; whether this one is kept, or looked at where a trigger decides."""
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
        """Take `nbytes` from what `--max-bytes` allows."""
        if self._bytes_left is None:
            return True
        with self._lock:
            if self.full or nbytes > self._bytes_left:
                self.full = True
                return False
            self._bytes_left -= nbytes
            return True
