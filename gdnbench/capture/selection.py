"""Which calls are kept."""

from __future__ import annotations

import re
import threading
from fnmatch import fnmatchcase

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
    """`--op`, `--layer`, `--first`, `--every`, `--max-bytes`. Thread safe.

    `--first` and `--every` count the calls of each layer that pass the other filters, so that a step that is
    kept has every layer. `--max-bytes` ends the capture of this process at the first record that does not
    fit.
    """

    def __init__(self, options: CaptureOptions) -> None:
        self._ops = frozenset(options.op)
        self._layers = tuple(part for pattern in options.layer for part in pattern.split(",") if part)
        if options.layer and not self._layers:
            raise BadInputError(f"--layer {','.join(options.layer)!r} names no layer")
        self._first = options.first
        self._every = options.every
        self._bytes_left = options.max_bytes
        self.full = False  # `--max-bytes` was reached
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def step(self, layer: Layer) -> int:
        """Count a call of `layer`; the number of those before it."""
        with self._lock:
            layer.calls += 1
            return layer.calls - 1

    def passes(self, op: str, layer: Layer) -> bool:
        """Whether calls of `op` by `layer` are kept at all."""
        return (not self._ops or op in self._ops) and self._keeps_layer(layer)

    def keeps(self, op: str, layer: Layer) -> bool:
        """Count a call that passes; whether this one is kept."""
        if not self.passes(op, layer):
            return False
        with self._lock:
            ordinal = layer.eligible
            layer.eligible += 1
        return ordinal % self._every == 0 and (self._first is None or ordinal // self._every < self._first)

    def _keeps_layer(self, layer: Layer) -> bool:
        return not self._layers or any(layer_matches(pattern, layer) for pattern in self._layers)

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
