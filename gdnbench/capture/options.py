# SPDX-License-Identifier: Apache-2.0
"""The options of `gdnbench capture`, and their JSON form in the environment.

Standard library only: every Python process below a captured command reads them at start-up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from gdnbench.errors import BadInputError
from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES

STORE_VARIABLE = "GDNBENCH_CAPTURE"
OPTIONS_VARIABLE = "GDNBENCH_CAPTURE_OPTIONS"

# The layouts of swa_decode, whose module imports torch; this one must not.
CACHE_LAYOUTS = ("per_token_scale", "fp8_ds_mla", "bfloat16")

LAYER_INDICES = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
"""An index of a layer, or a range of them; anything else is a glob of names."""

# Signals without a default meaning that capture could break.
_SWITCHING = ("SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGURG")

_LISTS = ("target", "op", "layer", "table")
_COUNTS = ("first", "every", "max_bytes", "queue_bytes", "ring_bytes", "digest_sample")
_FLAGS = ("full_pools", "sync", "graphs", "on_nonfinite", "paused", "break_graphs", "digests", "on_lineage")


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Selection and behaviour of a capture; the defaults keep every call of every known function.

    BadInputError, naming option and value, if one has the wrong type or range.
    """

    target: tuple[
        str, ...
    ] = ()  # framework, module, part of a module path, function or module:function; globs
    op: tuple[str, ...] = ()  # operations by name
    layer: tuple[str, ...] = ()  # indices ("3"), ranges ("0-3") or names (globs)
    table: tuple[str, ...] = ()  # files with tables of paged callers
    first: int | None = None  # of each layer, at most this many calls
    every: int = 1  # of each layer, every N-th call, beginning with the first
    max_bytes: int | None = None  # of one process
    when_over: Literal["stop", "drop-oldest"] = "stop"  # at the first record beyond `max_bytes`
    full_pools: bool = False  # keep whole state pools, not only the rows that a call can touch
    sync: bool = False  # write inputs to disk before the call starts
    graphs: bool = True  # add copies to CUDA graphs, so that their replays are recorded
    break_graphs: bool = False  # have torch.compile leave captured functions to Python
    when_full: Literal["block", "drop"] = "block"  # what happens when `queue_bytes` wait to be sealed
    queue_bytes: int = 4 << 30
    cache_layout: str = "bfloat16"  # layout in which rows of a cache without pages are stored
    block_size: int = 64  # page size in tokens for such rows
    on_lineage: bool = False  # keep calls that read another state than their request last wrote
    digests: bool = False  # keep digests of the states that calls read and write, and no tensor
    digest_sample: int = 1  # of a state's groups of 128 bytes, every N-th counts; odd
    zstd: int | None = 1  # level, 1 to 9; None stores elements as they are
    on_nonfinite: bool = False  # keep calls with a NaN or infinity in an input or output
    when: str | None = None  # keep calls for which this expression over scalars and shapes holds
    around: int = 0  # of each layer, calls to keep before and after one that a trigger held for
    ring_bytes: int = 256 << 20  # memory for calls that wait for a trigger
    paused: bool = False  # start paused, until switched on
    control: str | None = None  # file with on, off, once or next N, read while the program runs
    signal: str | None = None  # signal that toggles recording, such as USR2
    report: str | None = None  # file for events to the launcher; only the launcher sets it

    def __post_init__(self) -> None:
        for name in _LISTS:
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
                raise BadInputError(f"capture option {name!r} is {value!r}, must be a list of strings")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is None and name in ("first", "max_bytes"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadInputError(f"capture option {name!r} is {value!r}, must be an integer above 0")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise BadInputError(
                    f"capture option {name!r} is {getattr(self, name)!r}, must be true or false"
                )
        if self.when_full not in ("block", "drop"):
            raise BadInputError(
                f"capture option 'when_full' is {self.when_full!r}, must be 'block' or 'drop'"
            )
        if self.when_over not in ("stop", "drop-oldest"):
            raise BadInputError(
                f"capture option 'when_over' is {self.when_over!r}, must be 'stop' or 'drop-oldest'"
            )
        if self.when_over == "drop-oldest" and self.max_bytes is None:
            raise BadInputError("capture option 'when_over' is about max_bytes, and there is no max_bytes")
        if self.cache_layout not in CACHE_LAYOUTS:
            raise BadInputError(
                f"capture option 'cache_layout' is {self.cache_layout!r}, must be one of "
                f"{', '.join(CACHE_LAYOUTS)}"
            )
        if type(self.block_size) is not int or self.block_size not in BLOCK_SIZES:
            raise BadInputError(
                f"capture option 'block_size' is {self.block_size!r}, must be one of "
                f"{', '.join(map(str, BLOCK_SIZES))}"
            )
        if self.zstd is not None and (type(self.zstd) is not int or not 1 <= self.zstd <= 9):
            raise BadInputError(f"capture option 'zstd' is {self.zstd!r}, must be a level 1 to 9 or null")
        if type(self.around) is not int or self.around < 0:
            raise BadInputError(f"capture option 'around' is {self.around!r}, must be an integer from 0 on")
        for name in ("when", "control", "signal"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise BadInputError(f"capture option {name!r} is {getattr(self, name)!r}, must be a string")
        self._check_layers()
        self._check_triggers()
        self._check_digests()
        if self.report is not None and not isinstance(self.report, str):
            raise BadInputError(f"capture option 'report' is {self.report!r}, must be a path")

    def _check_layers(self) -> None:
        parts = [part for pattern in self.layer for part in pattern.split(",")]
        if self.layer and not any(parts):
            raise BadInputError(
                f"capture option 'layer' is {list(self.layer)!r}, must name a layer, e.g. 0-3"
            )
        for part in parts:
            found = LAYER_INDICES.fullmatch(part)
            if found and found[2] is not None and int(found[1]) > int(found[2]):
                raise BadInputError(
                    f"capture option 'layer' has the range {part!r}, which selects no layer; write"
                    f" {found[2]}-{found[1]}"
                )

    def _check_digests(self) -> None:
        if self.digest_sample % 2 == 0:
            raise BadInputError(
                f"capture option 'digest_sample' is {self.digest_sample!r}, must be an odd number, 1 for all"
                " bytes"
            )
        if self.digest_sample != 1 and not self.digests:
            raise BadInputError("capture option 'digest_sample' is about digests; give digests too")
        if not self.digests:
            return
        for name, given in (
            ("sync", self.sync),
            ("full_pools", self.full_pools),
            ("a trigger", self.triggered),
        ):
            if given:
                raise BadInputError(
                    f"capture option 'digests' keeps no tensor, and {name} is about tensors: give only one"
                )

    def _check_triggers(self) -> None:
        if self.when is not None:
            from gdnbench.capture.filter_expr import When

            When(self.when)
        if self.signal is not None:
            import signal

            name = self.signal if self.signal.startswith("SIG") else f"SIG{self.signal}"
            if name not in _SWITCHING or name not in signal.Signals.__members__:
                raise BadInputError(
                    f"capture option 'signal' is {self.signal!r}, must be one of"
                    f" {', '.join(one.removeprefix('SIG') for one in _SWITCHING)}"
                )
        if self.around and not self.triggered:
            raise BadInputError(
                "capture option 'around' is about calls that a trigger holds for; give on_nonfinite,"
                " on_lineage or when"
            )
        if self.on_lineage and self.every != 1:
            raise BadInputError(
                "capture option 'on_lineage' follows every call, and 'every' leaves calls out: give only one"
            )
        if self.sync and self.triggered:
            raise BadInputError(
                "capture option 'sync' has every call's inputs on disk; a trigger keeps some: give only one"
            )

    @property
    def triggered(self) -> bool:
        """Whether a trigger decides which of the selected calls are kept."""
        return self.on_nonfinite or self.on_lineage or self.when is not None

    def check_switch(self) -> None:
        """BadInputError if a capture starts paused and neither a control file nor a signal could switch it
        on."""
        if self.paused and self.control is None and self.signal is None:
            raise BadInputError(
                "capture option 'paused' begins without recording, and nothing switches it on; give control"
                " or signal"
            )

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> CaptureOptions:
        """The options in `text`, a JSON object of option names; missing options keep their defaults."""
        try:
            given = json.loads(text)
        except ValueError as error:
            raise BadInputError(f"{OPTIONS_VARIABLE} is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise BadInputError(f"{OPTIONS_VARIABLE} holds {given!r}, must be an object of option names")
        known = {field.name for field in fields(cls)}
        for name in given:
            if name not in known:
                raise BadInputError(
                    f"{OPTIONS_VARIABLE} names option {name!r}, which there is not; there are "
                    f"{', '.join(sorted(known - {'report'}))}"
                )
        lists: dict[str, Any] = {
            name: tuple(given[name]) for name in _LISTS if isinstance(given.get(name), list)
        }
        return cls(**{**given, **lists})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> CaptureOptions:
        text = environment.get(OPTIONS_VARIABLE)
        options = cls.from_json(text) if text else cls()
        options.check_switch()
        return options
