# SPDX-License-Identifier: Apache-2.0
"""Reads a suite from a TOML file, and finds the captures that it names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gdnbench.errors import BAD_INPUT_ERRORS, BadInputError, StoreError
from gdnbench.judge.by_tensor import check_tensor
from gdnbench.judge.record import ORACLE
from gdnbench.ops import operations
from gdnbench.prove.records import read_made
from gdnbench.replay import kernels
from gdnbench.replay.replay import RECORDED
from gdnbench.replay.simulated import SIM
from gdnbench.store.address import Address, is_url
from gdnbench.store.recover import open_store
from gdnbench.suite import schema
from gdnbench.suite.plan import FACTOR, Entry, Known, LineageCheck, Options, Suite, TensorRule
from gdnbench.toml_tables import parse_table, read_toml

LONGEST = 200
"""Maximum length of an entry's name: with `.zarr` and more it must fit a file name of 255 bytes."""


def read_suite(path: Path) -> Suite:
    """The suite at `path`; BadInputError, with file, table and key, if it is invalid."""
    document = read_toml(path)
    values = parse_table(document, schema.SUITE, str(path))
    if "replay" not in values and "lineage" not in values:
        raise BadInputError(f"{path} replays nothing: it has no table [[replay]]")
    defaults = values.get("defaults", {})
    parse_table(defaults, schema.DEFAULTS, f"{path}: [defaults]")
    factor = values.get("factor", FACTOR)
    entries: dict[str, Entry] = {}
    for number, table in enumerate(values.get("replay", ()), 1):
        where = f"{path}: [[replay]] {number}"
        for entry in entries_of(path.parent, {**_apart(defaults, table), **table}, where, factor):
            if entry.name in entries:
                other = entries[entry.name].where
                raise BadInputError(f"{where} makes an entry {entry.name}, as {other} does: give one a name")
            entries[entry.name] = entry
    known = tuple(
        _known(table, f"{path}: [[known]] {number}", entries)
        for number, table in enumerate(values.get("known", ()), 1)
    )
    baselines = path.parent / values["baselines"] if "baselines" in values else None
    return Suite(path, tuple(entries.values()), known, baselines, _lineage(path, values, entries))


def _lineage(path: Path, values: dict[str, Any], entries: dict[str, Entry]) -> tuple[LineageCheck, ...]:
    """The checks of the tables [[lineage]]: one for each capture."""
    found: dict[str, LineageCheck] = {}
    for number, table in enumerate(values.get("lineage", ()), 1):
        where = f"{path}: [[lineage]] {number}"
        keys = parse_table(table, schema.LINEAGE, where)
        if "captures" not in keys:
            raise BadInputError(f"{where} has no captures: say what is checked")
        captures = _captures(path.parent, keys["captures"], Options(), where)
        for capture, stem in zip(captures, _stems(captures), strict=True):
            parts = (keys.get("name"), stem, "lineage")
            name = ".".join(_slug(part) for part in parts if part is not None)
            if name in found or name in entries:
                raise BadInputError(f"{where} makes a second entry {name}: give one a name")
            found[name] = LineageCheck(name, where, capture, _path(path.parent, capture))
    return tuple(found.values())


def _path(folder: Path, capture: str) -> Address:
    return capture if is_url(capture) else Path(_from_here(folder / capture))


def _apart(defaults: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """The defaults that apply to a table: a rule in the table replaces a default rule of another kind."""
    ruled = any(name in table for name in schema.RULE)
    return {name: value for name, value in defaults.items() if not (ruled and name in schema.RULE)}


def entries_of(folder: Path, table: dict[str, Any], where: str, factor: float) -> Iterator[Entry]:
    """The entries of one table: each capture with each kernel on each device. `factor` is the default."""
    values = parse_table(table, schema.REPLAY, where)
    for names in (("captures", "made"), ("kernels",)):
        if not any(name in values for name in names):
            raise BadInputError(f"{where} has no {' and no '.join(names)}: say what is replayed")
    name, places = values.pop("name", None), values.pop("on", ("cpu",))
    patterns, files, names = values.pop("captures", ()), values.pop("made", ()), values.pop("kernels")
    options = _options(folder, {"factor": factor, **values}, where)
    captures = [*_captures(folder, patterns, options, where), *_made(folder, files, options, where)]
    for capture, stem in zip(captures, _stems(captures), strict=True):
        for kernel in names:
            for on in places:
                _check(kernel, on, options, where)
                parts = (name, stem, _slug(kernel), on)
                called = ".".join(_slug(part) for part in parts if part is not None)
                if len(called) > LONGEST:
                    raise BadInputError(
                        f"{where} makes an entry of {len(called)} characters, {called[:60]}...;"
                        f" its results are a file of that name: make it at most {LONGEST}"
                    )
                yield Entry(
                    called,
                    where,
                    capture,
                    _path(folder, capture),
                    _kernel(folder, kernel),
                    kernel,
                    on,
                    options,
                    made=capture in files,
                )


def _options(folder: Path, values: dict[str, Any], where: str) -> Options:
    rule = schema.take_rule(values, where)
    tensors: dict[str, TensorRule] = {}
    for tensor, table in values.pop("tensors", {}).items():
        place = f"{where}: tensors.{tensor}"
        try:
            check_tensor(tensor)
        except BAD_INPUT_ERRORS as error:
            raise BadInputError(f"{where}: tensors: {error}") from None
        if not isinstance(table, dict):
            raise BadInputError(f"{place} must be a rule, such as {{ k = 3 }}")
        tensors[tensor] = schema.take_rule(parse_table(table, schema.RULE, place), place)
    if "accept" in values:
        values["accept"] = folder / values["accept"]
    if values.get("op", next(iter(operations()))) not in operations():
        raise BadInputError(f"{where}: op {values['op']!r} is none of {', '.join(operations())}")
    found = Options(rule=rule, tensors=tensors, **values)
    if found.timeout is not None and found.isolate is False:
        raise BadInputError(f"{where}: timeout: a kernel in this process cannot be stopped; isolate it")
    if found.accept is not None and not found.check:
        raise BadInputError(f"{where}: accept is about what the checker finds: write check = true too")
    return found


def _captures(folder: Path, patterns: tuple[str, ...], options: Options, where: str) -> list[str]:
    """Paths of the matching captures, relative to `folder` if possible."""
    found: dict[str, None] = {}
    for pattern in patterns:
        if is_url(pattern):
            if not _has(pattern, options, where):
                raise BadInputError(f"{where}: captures {pattern!r} have no record of {options.op}")
            found[pattern] = None
            continue
        root = glob.escape(str(folder))
        matches = sorted(glob.glob(os.path.join(root, pattern), recursive=True))
        if not matches:
            raise BadInputError(f"{where}: captures {pattern!r} match nothing in {folder}")
        # A pattern may match the runs that an earlier replay of this suite saved.
        captured = [match for match in matches if not glob.has_magic(pattern) or not _is_run(Path(match))]
        with_op = [match for match in captured if _has(Path(match), options, where)]
        if not with_op:
            raise BadInputError(f"{where}: captures {pattern!r} have no record of {options.op}")
        found |= dict.fromkeys(Path(os.path.relpath(match, folder)).as_posix() for match in with_op)
    return list(found)


def _made(folder: Path, files: tuple[str, ...], options: Options, where: str) -> tuple[str, ...]:
    """The files of made records, each of which has one of the requested operation."""
    for file in files:
        if options.op not in (None, *(record.op for record in read_made(folder / file))):
            raise BadInputError(f"{where}: made {file!r} has no record of {options.op}")
    return files


def _is_run(path: Path) -> bool:
    """Whether a store is a saved replay; False for a store that cannot be read."""
    try:
        with open_store(path) as store:
            return store.kind == "run"
    except StoreError:
        return False


def _has(path: Address, options: Options, where: str) -> bool:
    """Whether a capture has a record of the requested operation."""
    try:
        with open_store(path) as store:
            ops = [record.info.op for record in store.records]
    except StoreError as error:
        raise BadInputError(f"{where}: captures: {error}") from None
    if not ops:
        raise BadInputError(f"{where}: captures: {path} has no records")
    beyond = [number for number in options.records or () if number >= len(ops)]
    if beyond:
        raise BadInputError(
            f"{where}: records: {path} has no record {beyond[0]}; it has {len(ops)}, numbered from 0"
        )
    return options.op is None or options.op in [ops[number] for number in options.records or range(len(ops))]


def _check(kernel: str, on: str, options: Options, where: str) -> None:
    if options.check and on != SIM:
        raise BadInputError(f"{where}: check is done by the simulator: on must be {SIM}, not {on}")
    if (options.machine is not None or options.sms is not None) and on != SIM:
        raise BadInputError(f"{where}: machine and sms describe a simulated GPU: on must be {SIM}, not {on}")
    for key, name, others in (("kernels", kernel, ()), ("against", options.against, (ORACLE, RECORDED))):
        try:
            if name not in others:
                kernels.check_name(name)
        except BAD_INPUT_ERRORS as error:
            raise BadInputError(f"{where}: {key}: {error}") from None
    if options.stages and options.against == RECORDED:
        raise BadInputError(f"{where}: stages: no call records them; compare with reference or a kernel")


def _kernel(folder: Path, written: str) -> str:
    """The kernel for `replay`: a file is relative to the suite's folder; modules are imported from the
    current one."""
    place, colon, function = written.rpartition(":")
    return f"{_from_here(folder / place)}{colon}{function}" if place.endswith(".py") else written


def _from_here(path: Path) -> str:
    """The path relative to the current folder, or absolute if that is shorter."""
    return min(os.path.relpath(path), os.path.abspath(path), key=len)


def _stems(captures: list[str]) -> list[str]:
    """Short names: file names if they are unique, else paths."""
    short = [_stem(Path(capture).name) for capture in captures]
    return short if len(set(short)) == len(short) else [_stem(capture) for capture in captures]


def _stem(name: str) -> str:
    return name.removesuffix(".zip").removesuffix(".zarr").removesuffix(".toml")


def _slug(text: str) -> str:
    """`text` as part of a file name on any system."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-") or "_"


def _known(table: dict[str, Any], where: str, entries: dict[str, Entry]) -> Known:
    values = parse_table(table, schema.KNOWN, where)
    for name, why in (("entry", "of what"), ("reason", "why"), ("until", "until when")):
        if name not in values:
            raise BadInputError(f"{where} has no {name}: say {why} it is known")
    if not any(fnmatchcase(name, values["entry"]) for name in entries):
        there = ", ".join(entries)
        raise BadInputError(f"{where}: entry {values['entry']!r} matches no entry; there are {there}")
    return Known(where, **values)


def restrict_to_entries(suite: Suite, pattern: str) -> Suite:
    """The suite with the entries whose names match `pattern`; BadInputError if none does."""
    left = tuple(entry for entry in suite.entries if fnmatchcase(entry.name, pattern))
    lineage = tuple(check for check in suite.lineage if fnmatchcase(check.name, pattern))
    if not left and not lineage:
        names = [*(entry.name for entry in suite.entries), *(check.name for check in suite.lineage)]
        there = ", ".join(names)
        raise BadInputError(f"--entry {pattern!r} matches no entry of {suite.path}; there are {there}")
    return replace(suite, entries=left, lineage=lineage)
