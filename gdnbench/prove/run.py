# SPDX-License-Identifier: Apache-2.0
"""Runs everything that says whether a kernel is right: captures, made records, laws, repetitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from gdnbench.errors import BAD_INPUT_ERRORS, BadInputError, CannotRunError, StoreError
from gdnbench.judge import calls
from gdnbench.ops import operation
from gdnbench.prove.laws import LawTester
from gdnbench.prove.records import MadeRecord, read_made, write_made
from gdnbench.prove.repeat import check_repeats
from gdnbench.prove.result import Check, Proof, Section, check_of_record
from gdnbench.replay import kernels
from gdnbench.replay.execute import device_of
from gdnbench.replay.replay import replay
from gdnbench.replay.simulated import SIM
from gdnbench.report.report import RecordResult
from gdnbench.shipped import CAPTURES
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.recover import open_store
from gdnbench_kernels.contract import Call, ContractError

SIM_FLOP = 100_000_000
"""The simulator skips captured calls of more floating-point operations; it takes about a second for 10
million."""
SIM_RECORDS = 3
"""Captured records of a store that are simulated, from the first to the last."""
POISON = "poison: outputs, and pool rows that were not captured, held NaN before every call"


@dataclass(frozen=True, slots=True)
class Options:
    """What to prove. `sections`: those to run. `captures`: a folder of captures, None for the repository's.
    `everything`: on the simulator also the records that are too large for it. `seed` is added to the seeds of
    made records."""

    kernel: str
    op: str
    on: str = "cpu"
    sections: tuple[Section, ...] = tuple(Section)
    captures: Path | None = None
    everything: bool = False
    seed: int = 0
    isolate: bool | None = None
    timeout: float | None = None


Progress = Callable[[Section, int, int], None]
"""Called with a section, the number of its kernel calls that are done, and of those known so far."""


@dataclass(slots=True)
class Prover:
    """Proves a kernel. `checks` has what was found, also while it runs and after an interrupt."""

    options: Options
    progress: Progress = lambda section, done, total: None
    checks: list[Check] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    def proof(self) -> Proof:
        """What was found so far."""
        options = self.options
        notes = [*self.notes, POISON] if self.checks else self.notes
        return Proof(
            options.kernel,
            options.op,
            options.on,
            options.seed,
            tuple(self.checks),
            tuple(self.left_out),
            tuple(notes),
            self.interrupted,
        )

    def prove(self) -> Proof:
        """Run all sections. Ctrl-C ends the run and is noted.

        BadInputError for arguments that name nothing, CannotRunError if the device, the captures or the made
        records are not here.
        """
        options = self.options
        operation(options.op)
        device_of(options.on)
        kernels.check_name(options.kernel, options.on)
        stores = self._captures()
        made = self._made() if set(options.sections) - {Section.CAPTURES} else []
        try:
            with ExitStack() as stack:
                captured: list[tuple[str, Call]] = []
                for path in stores:
                    capture = stack.enter_context(open_store(path))
                    if Section.CAPTURES in options.sections:
                        self._prove_capture(capture, _stem(path))
                    if Section.LAWS in options.sections and not self._sparing():
                        captured += self._captured_call(capture, _stem(path))
                if Section.LAWS in options.sections and self._sparing():
                    self._leave_out(len(stores), "captured record", "in laws")
                store = stack.enter_context(self._made_store(made)) if made else None
                if Section.MADE in options.sections and store is not None:
                    self._replay(Section.MADE, "made records", store, None)
                if Section.LAWS in options.sections:
                    self._test_laws(made, captured)
                if Section.REPEAT in options.sections and store is not None:
                    check_repeats(
                        store,
                        kernel=options.kernel,
                        on=options.on,
                        isolate=options.isolate,
                        timeout=options.timeout,
                        found=self.checks.append,
                        progress=self._advance(Section.REPEAT),
                    )
        except KeyboardInterrupt:
            self.interrupted = True
        return self.proof()

    def _captures(self) -> list[Path]:
        """The captures with records of the operation, if a section needs them."""
        folder, op, sections = self.options.captures or CAPTURES, self.options.op, self.options.sections
        if not {Section.CAPTURES, Section.LAWS} & set(sections):
            return []
        if self.options.captures is None and not any(CAPTURES.glob("*.zarr.zip")):
            if Section.CAPTURES not in sections:
                return []
            raise CannotRunError(
                "this installation lacks the captures that gdnbench brings along: install a wheel or a"
                " checkout, give --captures DIR, or skip them with --only made,laws,repeat"
            )
        if not folder.is_dir():
            raise BadInputError(
                f"--captures {folder} is no folder; give the folder in which the stores are"
                if folder.exists()
                else f"--captures {folder} does not exist"
            )
        found = []
        for path in sorted({*folder.glob("*.zarr"), *folder.glob("*.zarr.zip")}):
            with open_store(path) as store:
                if any(record.info.op == op for record in store.records):
                    found.append(path)
        if not found and self.options.captures is not None:
            raise BadInputError(
                f"--captures {folder} has no store, *.zarr or *.zarr.zip, with records of {op}"
            )
        if not found:
            self.notes.append(f"no capture has records of {op}")
        return found

    def _made(self) -> list[MadeRecord]:
        """The made records of the operation; on the simulator, those that are small enough."""
        options = self.options
        found = [record for record in read_made() if record.op == options.op]
        if not found:
            self.notes.append(f"no made record is of {options.op}")
        if not self._sparing():
            return found
        small = [record for record in found if record.sim]
        self._leave_out(len(found) - len(small), "made record")
        return small

    def _sparing(self) -> bool:
        """Whether only what is small enough for the simulator runs."""
        return self.options.on == SIM and not self.options.everything

    def _leave_out(self, count: int, what: str, of: str = "") -> None:
        if count:
            self.left_out.append(f"{count} {what}{'' if count == 1 else 's'} {of}".rstrip())

    @contextmanager
    def _made_store(self, made: Sequence[MadeRecord]) -> Iterator[Store]:
        with TemporaryDirectory(prefix="gdnbench-prove-") as folder:
            path = Path(folder) / "made.zarr"
            write_made(path, made, self.options.seed)
            with open_store(path) as store:
                yield store

    def _captured_call(self, store: Store, name: str) -> list[tuple[str, Call]]:
        """The first record of a capture as a call for the laws; none if it is refused."""
        of = operation(self.options.op)
        record = next(record for record in store.records if record.info.op == of.name)
        try:
            calls.check_record(record, of)
            call = calls.compact_call(record, of, torch.device("cpu"))
        except (ContractError, *BAD_INPUT_ERRORS, StoreError):
            return []  # replay says what is wrong with it
        return [(f"{name} {record.number}", call)]

    def _prove_capture(self, store: Store, name: str) -> None:
        numbers = [record.number for record in store.records if record.info.op == self.options.op]
        if self._sparing():
            small = [number for number in numbers if self._small(store.records[number])]
            chosen = evenly(small, SIM_RECORDS)
            self._leave_out(len(numbers) - len(chosen), "record", f"of {name}")
            numbers = chosen
        if numbers:
            self._replay(Section.CAPTURES, name, store, numbers)

    def _small(self, record: StoredRecord) -> bool:
        of = operation(self.options.op)
        if of.work is None:
            return True
        try:
            return of.work(calls.outline_call(record, of)).flop <= SIM_FLOP
        except (ContractError, KeyError, *BAD_INPUT_ERRORS, StoreError):
            return True  # replay says what is wrong with it

    def _replay(self, section: Section, name: str, store: Store, numbers: Sequence[int] | None) -> None:
        options = self.options
        advance = self._advance(section)

        begin = time.monotonic()

        def finished(done: int, total: int, record: RecordResult) -> None:
            nonlocal begin
            check = check_of_record(section, name, record)
            end = time.monotonic()
            self.checks.append(replace(check, seconds=end - begin))
            begin = end
            advance(done, total)

        replay(
            store,
            kernel=options.kernel,
            on=options.on,
            op=options.op,
            records=numbers,
            isolate=options.isolate,
            timeout=options.timeout,
            progress=finished,
        )

    def _test_laws(self, made: Sequence[MadeRecord], captured: Sequence[tuple[str, Call]]) -> None:
        options = self.options
        named = [(one.name, one.call(options.seed)) for one in made if one.laws]
        of = operation(options.op)
        if of.laws is None:
            self.notes.append(f"{options.op} states no laws")
            return
        tester = LawTester(
            of,
            options.kernel,
            options.on,
            self.checks.append,
            isolate=options.isolate,
            timeout=options.timeout,
            progress=self._advance(Section.LAWS),
        )
        tester.test([*named, *captured])

    def _advance(self, section: Section) -> Callable[[int, int], None]:
        return lambda done, total: self.progress(section, done, total)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".zip").removesuffix(".zarr")


def evenly(numbers: Sequence[int], count: int) -> list[int]:
    """At most `count` of the numbers, from the first to the last."""
    if len(numbers) <= count:
        return list(numbers)
    return [numbers[round(i * (len(numbers) - 1) / (count - 1))] for i in range(count)]
