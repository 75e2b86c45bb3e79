# SPDX-License-Identifier: Apache-2.0
"""Made records: calls along the hard axes of each operation, described in `suites/made.toml`.

    for name, call in made_records("gdn_prefill"): ...

A record has the options of its operation's synth, so that its call is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.ops import operation, operations
from gdnbench.shipped import MADE
from gdnbench.store.compression import Compression
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft_inputs, options_from_text, synthesise
from gdnbench.toml_tables import FLAG, TEXT, Key, parse_subtables, parse_table, read_toml, refuse_unless
from gdnbench_kernels.contract import Call

LARGEST_SEED = 2**63 - 1


def _seed(value: Any) -> int:
    refuse_unless(isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_SEED)
    return int(value)


def _options(value: Any) -> dict[str, str]:
    """The options as the texts that `gdnbench synth` takes: one parser checks both."""
    refuse_unless(isinstance(value, dict))
    return {name: _option_text(one) for name, one in value.items()}


def _option_text(value: Any) -> str:
    if isinstance(value, list):
        refuse_unless(all(isinstance(one, int | float) for one in value))
        return ",".join(map(str, value))
    refuse_unless(isinstance(value, bool | int | float | str))
    return str(value).lower() if isinstance(value, bool) else str(value)


FILE = {"record": Key("tables, [[record]]", parse_subtables)}
RECORD = {
    "name": TEXT,
    "op": TEXT,
    "seed": Key("an integer of 0 or more", _seed),
    "options": Key("a table of numbers, texts, true, false, and lists of numbers", _options),
    "sim": FLAG,
    "laws": FLAG,
}


@dataclass(frozen=True, slots=True)
class MadeRecord:
    """One `[[record]]`. `options` are those of the operation's synth. `sim`: small enough for the simulator.
    `laws`: `gdnbench prove` tests laws on it."""

    name: str
    op: str
    seed: int
    options: Mapping[str, Any]
    where: str
    sim: bool = False
    laws: bool = False

    def call(self, seed_shift: int = 0) -> Call:
        """The call, made with the record's seed plus `seed_shift`. BadInputError, with the table, for options
        that make no valid call."""
        try:
            return synthesise(self.op, **self.options, seed=self.seed + seed_shift)
        except BadInputError as error:
            raise BadInputError(f"{self.where}: {error}") from None


def made_records(op: str, seed_shift: int = 0, file: str | Path | None = None) -> Iterator[tuple[str, Call]]:
    """Name and call of each made record of operation `op`, in the order of `file`.

    `seed_shift` is added to the seed of each. Raises as `read_made` and `MadeRecord.call` do; BadInputError
    for an operation that there is not.
    """
    operation(op)
    for record in read_made(file):
        if record.op == op:
            yield record.name, record.call(seed_shift)


def read_made(file: str | Path | None = None) -> tuple[MadeRecord, ...]:
    """The records of `file`, or of the repository's `suites/made.toml`.

    BadInputError, with file, table and key, if the file is invalid. CannotRunError if no file is given and
    this installation has none.
    """
    path = MADE if file is None else Path(file)
    if file is None and not path.is_file():
        raise CannotRunError(
            "this installation lacks suites/made.toml, which describes the made records: install a wheel or a"
            " checkout, or skip them"
        )
    values = parse_table(read_toml(path), FILE, str(path))
    found: dict[tuple[str, str], MadeRecord] = {}
    for number, table in enumerate(values.get("record", ()), 1):
        record = _made_record(table, f"{path}: [[record]] {number}")
        key = record.op, record.name
        if key in found:
            raise BadInputError(
                f"{record.where} is called {record.name!r}, as {found[key].where} is: names are unique"
            )
        found[key] = record
    if not found:
        raise BadInputError(f"{path} describes no record: it has no table [[record]]")
    return tuple(found.values())


def _made_record(table: Mapping[str, Any], where: str) -> MadeRecord:
    values = parse_table(table, RECORD, where)
    for name in ("name", "op", "seed"):
        if name not in values:
            raise BadInputError(f"{where} has no {name}")
    op = values["op"]
    if op not in operations():
        raise BadInputError(f"{where}: op {op!r} is none of {', '.join(operations())}")
    texts = values.pop("options", {})
    if "seed" in texts:
        raise BadInputError(f"{where}: seed belongs beside options, not among them")
    try:
        options = options_from_text(op, texts)
    except BadInputError as error:
        raise BadInputError(f"{where}: {error}") from None
    return MadeRecord(**values, options=options, where=where)


def write_made(path: Path, records: Iterable[MadeRecord], seed_shift: int = 0) -> None:
    """Write a store of made records, in their order; see `write_calls`."""
    _write(path, ((one.op, one.name, one.call(seed_shift)) for one in records), whole=False)


def write_calls(path: Path, op: str, calls: Iterable[tuple[str, Call]], *, whole: bool = False) -> None:
    """Write a store of named calls of `op`, in their order: records without outputs, whose layers are the
    names, and whose keys are the same each time. `whole`: pools are stored with all their rows."""
    _write(path, ((op, name, call) for name, call in calls), whole=whole)


def _write(path: Path, calls: Iterable[tuple[str, str, Call]], *, whole: bool) -> None:
    stored = Compression(None)
    with StoreWriter(path, kind="synth", segment="made", compression=stored, durable=False) as writer:
        for index, (op, name, call) in enumerate(calls):
            writer.write(f"{index:06}", [draft_inputs(op, call, name, index, whole=whole)], first=index)
