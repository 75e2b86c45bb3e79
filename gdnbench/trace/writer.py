# SPDX-License-Identifier: Apache-2.0
"""Writes value traces: one store, with a group for every launch, which grows while the launch runs.

The group's attribute `events` is the number of committed events; it is written after the chunks that hold
them. A process that is killed loses what it had in memory, at most a chunk of events and of values, and
leaves the launch without `end`.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from gdnbench.errors import StoreError
from gdnbench.provenance import process_info, provenance
from gdnbench.sim.value_trace import LANES, End, Selection, TracedInstruction, traced_instructions
from gdnbench.store.arrays import write_array
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.files import FolderFiles
from gdnbench.store.layout import FORMAT_VERSION, METADATA, METADATA_LIMIT, TRACE, group_json, parse_node
from gdnbench.trace.append_array import AppendArray
from gdnbench.trace.layout import (
    COLUMNS,
    EVENT_BYTES,
    EVENTS_CHUNK,
    LAUNCHES,
    ROW,
    ROW_BYTES,
    TEXTS,
    TRACE_VERSION,
    VALUES,
    VALUES_CHUNK,
    launch_name,
)
from gdnbench.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gdnbench.sim import Launch, Schedule

MAX_BYTES = 1 << 30
"""The default limit of a trace in bytes, before compression: some 3,500,000 events of one register."""

Told = Callable[[str], None]
"""Called as events are recorded with the number in the store, as text."""


def make_trace(path: Path) -> None:
    """Make an empty trace at `path`. Raises StoreError if something exists there or it cannot be made."""
    if path.exists():
        raise StoreError(f"{path} is there already; a trace is a new store, choose another path")
    root = {
        "format_version": FORMAT_VERSION,
        "kind": TRACE,
        "trace_version": TRACE_VERSION,
        "created_by": f"gdnbench {__version__}",
        "process": process_info(),
        "provenance": provenance(),
    }
    with _writing(path):
        path.mkdir(parents=True)
        for name in (LAUNCHES, TEXTS):
            (path / name).mkdir()
            (path / name / METADATA).write_bytes(group_json({}))
        (path / METADATA).write_bytes(group_json(root))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Converts errors of the file system to a StoreError with advice."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"{path}: the trace cannot be written: {error.strerror or error}; choose another path"
        ) from error


@dataclass(slots=True)
class TraceWriter:
    """Adds launches to the trace at `path`, one after the other. At `limit` bytes before compression
    recording stops; the number of dropped events is stored."""

    path: Path
    limit: int = MAX_BYTES
    on_progress: Told | None = None
    recorded: int = 0
    dropped: int = 0
    launches: int = 0
    _bytes: int = 0

    def __post_init__(self) -> None:
        files = FolderFiles(self.path)
        for name in files.folders(LAUNCHES):
            self.launches += 1
            text = files.read(f"{LAUNCHES}/{name}/{METADATA}", METADATA_LIMIT)
            if not text:  # of a process that was killed, or had no disk space, at the start of a launch
                continue
            _, ours = parse_node(text, "group", name)
            self.recorded += ours["events"]
            self.dropped += ours["dropped"]
            self._bytes += ours["bytes"]

    def reserve_rows(self, rows: int) -> bool:
        """Reserve room for an event with so many registers. False if there is none."""
        size = EVENT_BYTES + ROW_BYTES * rows
        if self.dropped or self._bytes + size > self.limit:
            self.dropped += 1
            return False
        self._bytes += size
        return True

    def launch(self, selection: Selection, labels: Mapping[str, Any]) -> LaunchWriter:
        """The recorder of the next launch; `labels` identify it."""
        self.launches += 1
        return LaunchWriter(self, f"{LAUNCHES}/{launch_name(self.launches - 1)}", selection, dict(labels))

    def text(self, content: bytes) -> str:
        """Store a text; returns its digest."""
        digest = blake3(content).hexdigest()
        folder = self.path / TEXTS / digest
        if not (folder / METADATA).exists():
            bits = np.frombuffer(content, np.uint8)
            write_array(self.path, f"{TEXTS}/{digest}", bits, {}, Compression(), Chunking(), False)
        return digest


@dataclass(slots=True)
class LaunchWriter:
    """Writes the trace of one launch. Implements `Recorder`."""

    store: TraceWriter
    key: str
    selection: Selection
    labels: dict[str, Any]
    recorded: int = 0
    dropped: int = 0
    _bytes: int = 0
    _rows: int = 0
    _heads: list[tuple[int, ...]] = field(default_factory=list)  # of `COLUMNS` and `ROW`
    _pieces: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    _waiting: int = 0  # rows of `_pieces`
    _columns: list[AppendArray] = field(default_factory=list)
    _values: AppendArray | None = None
    _counts: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))  # rows by pc
    _attributes: dict[str, Any] = field(default_factory=dict)

    def begin_launch(self, launch: Launch, engine: str) -> None:
        """Create the launch's group. Raises StoreError if the store cannot be written."""
        config = launch.config
        instructions = traced_instructions(launch.kernel, self.selection)
        with _writing(self.store.path):
            table = "".join(json.dumps(asdict(one)) + "\n" for one in instructions)
            self._attributes = {
                "entry": launch.kernel.name,
                "grid": list(launch.grid),
                "block": list(launch.block),
                **self.labels,
                "selection": self.selection.text,
                "ptx": blake3(launch.module.text.encode()).hexdigest(),
                "instructions": self.store.text(table.encode()),
                "sources": self._sources(instructions),
                "regions": [
                    {"name": one.name, "address": one.base, "bytes": one.size}
                    for one in launch.memory.allocations
                ],
                "schedule": _name(config.schedule),
                "mma": config.mma,
                "engine": engine,
                "created_by": f"gdnbench {__version__}",
            }
            (self.store.path / self.key).mkdir()
            self._commit(0)
            self._columns = [self._array(name, (), "<u4", EVENTS_CHUNK) for name in COLUMNS]
            self._columns.append(self._array(ROW, (), "<u8", EVENTS_CHUNK))
            self._values = self._array(VALUES, (LANES,), "<u8", VALUES_CHUNK)
        self._counts = np.array([len(one.registers) for one in instructions], np.uint64)

    def add_event(
        self, cta: int, warp: int, pc: int, occurrence: int, lanes: int, values: npt.NDArray[np.uint64]
    ) -> None:
        """Add one execution of an instruction, in the order of its warp. `values` belongs to the writer from
        now on."""
        rows = len(values)
        if not self.store.reserve_rows(rows):
            self.dropped += 1
            return
        self._pieces.append(values)
        self._waiting += rows
        self._heads.append((cta, warp, pc, occurrence, lanes, self._rows))
        self._rows += rows
        self.recorded += 1
        self.store.recorded += 1
        self._bytes += EVENT_BYTES + ROW_BYTES * rows
        if self._waiting >= VALUES_CHUNK or len(self._heads) == EVENTS_CHUNK:
            self._write()

    def end_launch(self, how: End) -> None:
        """The launch has ended: write everything recorded."""
        if self._values is not None:
            self._write(how)
            self._values = None

    def _write(self, end: End | None = None) -> None:
        """Pass the pending rows to the arrays. An interrupt may come anywhere: rows taken out are passed on
        once, and the committed events are those that all arrays have."""
        assert self._values is not None
        with _writing(self.store.path):
            pieces, self._pieces, self._waiting = self._pieces, [], 0
            if pieces:
                self._values.append(np.concatenate(pieces))
            if len(self._heads) < EVENTS_CHUNK and end is None:
                return
            heads, self._heads = np.array(self._heads, np.uint64).reshape(-1, len(self._columns)), []
            for column, numbers in zip(self._columns, heads.T, strict=True):
                column.append(numbers)
            for array in (self._values, *self._columns) if end is not None else ():
                array.flush()
            written = min(column.written for column in self._columns)
            # From the last event of which some rows are still in memory on.
            missing = int((heads[:, -1] + self._counts[heads[:, 2]] > self._values.written).sum())
            self._commit(min(written, self.recorded - missing), end)
        if self.store.on_progress is not None:
            self.store.on_progress(f"{self.store.recorded:,} events")

    def _array(self, name: str, row: tuple[int, ...], dtype: str, chunk: int) -> AppendArray:
        return AppendArray(self.store.path, f"{self.key}/{name}", row, dtype, chunk, {})

    def _sources(self, instructions: list[TracedInstruction]) -> dict[str, str]:
        """Digests of the current text of the kernel's Python files, without those that cannot be read."""
        found = {}
        for file in dict.fromkeys(one.file for one in instructions if one.file is not None):
            try:
                content = Path(file).read_bytes()
            except OSError:
                continue
            found[file] = self.store.text(content)
        return found

    def _commit(self, events: int, end: End | None = None) -> None:
        """Write the counts of what is in the store, all at once."""
        said = {**self._attributes, "events": events, "dropped": self.dropped, "bytes": self._bytes}
        if end is not None:
            said["end"] = str(end)
        place = self.store.path / self.key / METADATA
        unfinished = place.with_name(f".{METADATA}.{secrets.token_hex(4)}")
        try:
            unfinished.write_bytes(group_json(said))
            os.replace(unfinished, place)
        except BaseException:  # no half of a file stays on a full disk
            unfinished.unlink(missing_ok=True)
            raise


def _name(schedule: Schedule) -> str:
    return f"{schedule.kind}:{schedule.seed}" if schedule.kind == "random" else schedule.kind
