# SPDX-License-Identifier: Apache-2.0
"""Reads value traces: launches, and their events from any event on. Every claim of the store is checked
before use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from gdnbench.errors import StoreError
from gdnbench.sim.value_trace import LANES, Event, TracedInstruction, TracedRegister
from gdnbench.store.address import Address
from gdnbench.store.files import StoreFiles, open_files
from gdnbench.store.layout import FORMAT_VERSION, METADATA, METADATA_LIMIT, TRACE, parse_node
from gdnbench.store.stored_array import StoredArray, open_array
from gdnbench.trace.layout import (
    COLUMNS,
    LAUNCHES,
    MOST_REGISTERS,
    ROW,
    TEXTS,
    TRACE_VERSION,
    VALUES,
    VALUES_CHUNK,
    launch_name,
)

_BLOCK = 4096  # events whose columns are read together
_WIDTHS = (1, 8, 16, 32, 64)


def is_trace(path: Address) -> bool:
    """Whether the store at `path` is a value trace; False if there is no store."""
    try:
        with _opened(path) as files:
            return _root(files).get("kind") == TRACE
    except StoreError:
        return False


@contextmanager
def _opened(path: Address) -> Iterator[StoreFiles]:
    files = open_files(path)
    try:
        yield files
    finally:
        files.close()


def _root(files: StoreFiles) -> dict[str, Any]:
    return _group(files, "", str(files.path))


def _group(files: StoreFiles, key: str, where: str) -> dict[str, Any]:
    text = files.read(f"{key}/{METADATA}" if key else METADATA, METADATA_LIMIT)
    if text is None:
        raise StoreError(f"{where} is not a Zarr store: it has no {METADATA}")
    return parse_node(text, "group", where)[1]


@contextmanager
def open_trace(path: Address) -> Iterator[Trace]:
    """Open the trace at `path`, a folder or a zip archive. Raises StoreError if it is not a trace or has
    another version."""
    with _opened(path) as files:
        ours = _root(files)
        if ours.get("kind") != TRACE:
            raise StoreError(f"{path} is no value trace; `gdnbench trace` writes one")
        version = ours.get("trace_version")
        if version != TRACE_VERSION or ours.get("format_version") != FORMAT_VERSION:
            raise StoreError(
                f"{path} is a value trace of version {version!r}, written by {ours.get('created_by')}; this"
                f" gdnbench reads version {TRACE_VERSION}"
            )
        names = files.folders(LAUNCHES)
        if names != [launch_name(number) for number in range(len(names))]:
            raise StoreError(f"{path}: {LAUNCHES} are not numbered from 0 on: one is missing or misnamed")
        texts = _Texts(files)
        # A process killed at the start of a launch leaves a group without attributes.
        said = [name for name in names if files.read(f"{LAUNCHES}/{name}/{METADATA}", METADATA_LIMIT)]
        launches = [_launch(files, texts, number, name) for number, name in enumerate(said)]
        yield Trace(files.path, ours, tuple(launches))


@dataclass(frozen=True, slots=True)
class Trace:
    """An open trace. `attributes` are those of its root: process, provenance, creator."""

    path: Path | str
    attributes: Mapping[str, Any]
    launches: tuple[TracedLaunch, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A range of global memory that the kernel could touch: a tensor's."""

    name: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class TracedLaunch:
    """One launch. `events` is the number of events in the store, `dropped` the number left out at the limit.
    `end` is how the launch ended, None if the writing process did not end it. `attributes` is everything that
    the writer stored about it."""

    number: int
    where: str
    entry: str
    grid: tuple[int, int, int]
    events: int
    dropped: int
    end: str | None
    regions: tuple[Region, ...]
    attributes: Mapping[str, Any]
    _files: StoreFiles = field(repr=False)
    _key: str = field(repr=False)
    _texts: _Texts = field(repr=False)

    @property
    def whole(self) -> bool:
        """Whether the store has every selected event."""
        return self.end == "complete" and not self.dropped

    @property
    def instructions(self) -> tuple[TracedInstruction, ...]:
        """The instructions by pc. Raises StoreError if the table is damaged."""
        return self._texts.table(self.attributes["instructions"])

    @property
    def sources(self) -> dict[str, str]:
        """The text of the kernel's Python files at the time of the launch, by path."""
        return {file: self._texts.text(digest) for file, digest in self.attributes["sources"].items()}

    def column(self, name: str) -> npt.NDArray[np.uint32]:
        """One of `COLUMNS`, for all events."""
        return self._column(name).read((slice(0, self.events),)).astype(np.uint32, copy=False)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """Events [start, stop) in the order of execution. Reads no event before `start`. Raises StoreError if
        the events are damaged."""
        stop = self.events if stop is None else min(stop, self.events)
        if start >= stop:
            return
        columns = [self._column(name) for name in COLUMNS]
        row, values = self._column(ROW), self._array(VALUES, (LANES,), np.dtype("<u8"))
        counts = np.array([len(one.registers) for one in self.instructions], np.uint64)
        for begin in range(start, stop, _BLOCK):
            part = (slice(begin, min(begin + _BLOCK, stop)),)
            cta, warp, pc, occurrence, lanes = (column.read(part) for column in columns)
            rows = row.read(part)
            if int(pc.max()) >= len(counts):
                raise StoreError(
                    f"{self.where} is damaged: an event names instruction {int(pc.max())} of {len(counts)}"
                )
            ends = rows + counts[pc]
            if (rows[1:] != ends[:-1]).any() or int(ends[-1]) > values.shape[0] or ends[-1] < rows[0]:
                raise StoreError(f"{self.where} is damaged: `{ROW}` does not say where values are")
            heads = (one.tolist() for one in (cta, warp, pc, occurrence, lanes))
            registers = _registers(values, rows.tolist(), ends.tolist())
            yield from map(Event, *heads, registers)

    def _column(self, name: str) -> StoredArray:
        return self._array(name, (), np.dtype("<u8" if name == ROW else "<u4"))

    def _array(self, name: str, row: tuple[int, ...], dtype: np.dtype[Any]) -> StoredArray:
        array = open_array(self._files, f"{self._key}/{name}")
        if array.shape[1:] != row or array.dtype != dtype or not array.shape:
            raise StoreError(f"{array.where} is {array.dtype.name} {array.shape}, not {dtype.name} of rows")
        if name != VALUES and array.shape[0] < self.events:
            raise StoreError(f"{array.where} has {array.shape[0]} events; the launch says {self.events}")
        return array


def _registers(
    values: StoredArray, starts: Sequence[int], ends: Sequence[int]
) -> Iterator[npt.NDArray[np.uint64]]:
    """The registers of each event, holding a chunk of them at a time."""
    block = np.empty((0, LANES), np.uint64)
    first = 0
    for start, end in zip(starts, ends, strict=True):
        if end > first + len(block):
            first = start
            last = min(max(end, start + VALUES_CHUNK), ends[-1])
            block = values.read((slice(first, last), slice(0, LANES))).astype(np.uint64, copy=False)
        yield block[start - first : end - first]


class _Texts:
    """The texts of a trace by digest, each read once."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._tables: dict[str, tuple[TracedInstruction, ...]] = {}

    def text(self, digest: object) -> str:
        where = f"{self._files.path}: text {digest!r}"
        if not isinstance(digest, str) or len(digest) != 64 or not digest.isalnum():
            raise StoreError(f"{where} is no digest")
        array = open_array(self._files, f"{TEXTS}/{digest}")
        if array.dtype.name != "uint8" or len(array.shape) != 1 or array.shape[0] > METADATA_LIMIT:
            raise StoreError(f"{where} is {array.dtype.name} {array.shape}, not a text of up to 64 MiB")
        content = array.read().tobytes()
        if blake3(content).hexdigest() != digest:
            raise StoreError(f"{where} is damaged: its bytes have another digest")
        return content.decode(errors="replace")

    def table(self, digest: object) -> tuple[TracedInstruction, ...]:
        found = self._tables.get(str(digest))
        if found is None:
            try:
                lines = self.text(digest).splitlines()
                found = tuple(_instruction(json.loads(line), pc) for pc, line in enumerate(lines))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                where = f"{self._files.path}: instructions {digest}"
                raise StoreError(f"{where} are not a table of instructions: {error}") from None
            self._tables[str(digest)] = found
        return found


def _instruction(data: Any, pc: int) -> TracedInstruction:
    """TypeError or KeyError if it is none."""
    registers = tuple(TracedRegister(**one) for one in data["registers"])
    if data["pc"] != pc or len(registers) > MOST_REGISTERS:
        raise ValueError(f"pc {data['pc']} with {len(registers)} registers stands at {pc}")
    for one in registers:
        _typed(one, {"index": int, "name": str, "bits": int, "format": str})
        if one.bits not in _WIDTHS:
            raise ValueError(f"a register of {one.bits} bits")
    found = TracedInstruction(
        **{
            **data,
            "registers": registers,
            "operands": tuple(data["operands"]),
            "addresses": tuple(data["addresses"]),
        }
    )
    kinds = {"name": str, "kind": str, "line": int, "text": str, "recorded": bool}
    _typed(found, {**kinds, "file": str | None, "file_line": int | None})
    for operand in (*found.operands, *found.addresses):
        if isinstance(operand, str):
            int(operand, 16)
        elif type(operand) is not int:
            raise TypeError(f"operand {operand!r}")
    return found


def _typed(given: Any, kinds: Mapping[str, Any]) -> None:
    for name, kind in kinds.items():
        value = getattr(given, name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise TypeError(f"{name} is {value!r}")


def _launch(files: StoreFiles, texts: _Texts, number: int, name: str) -> TracedLaunch:
    key = f"{LAUNCHES}/{name}"
    where = f"{files.path}: launch {number}"
    ours = _group(files, key, where)
    try:
        grid = tuple(ours["grid"])
        regions = tuple(Region(one["name"], one["address"], one["bytes"]) for one in ours["regions"])
        found = TracedLaunch(
            number,
            where,
            ours["entry"],
            grid,
            ours["events"],
            ours["dropped"],
            ours.get("end"),
            regions,
            ours,
            files,
            key,
            texts,
        )
        _typed(found, {"entry": str, "events": int, "dropped": int, "end": str | None})
        for region in regions:
            _typed(region, {"name": str, "address": int, "size": int})
        numbers = [*grid, found.events, found.dropped]
        if len(grid) != 3 or any(type(one) is not int or one < 0 for one in numbers):
            raise ValueError(f"grid {grid}, {found.events} events, {found.dropped} left out")
        if not isinstance(ours["sources"], dict):
            raise TypeError("sources are not by file")
        ours["instructions"]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{where} is damaged: {type(error).__name__} {error}") from None
    return found
