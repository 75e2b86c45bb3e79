# SPDX-License-Identifier: Apache-2.0
"""Suites as arguments of pytest: each record of each entry is a test."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gdnbench.errors import EXPECTED_ERRORS, Exit
from gdnbench.printable import printable
from gdnbench.pytest_plugin.items import RecordItem
from gdnbench.pytest_plugin.marks import RecordRequest, in_folder
from gdnbench.pytest_plugin.selection import select_records
from gdnbench.store.address import absolute_address
from gdnbench.suite.baseline import Baseline
from gdnbench.suite.plan import Entry, Suite
from gdnbench.suite.read import read_suite
from gdnbench.suite.result import replay_words
from gdnbench.suite.run import replay_arguments, store_of
from gdnbench.suite.verdict import judge_record

if TYPE_CHECKING:
    from gdnbench.pytest_plugin.case import Case
    from gdnbench.sim import Accepted


@dataclass(frozen=True, slots=True)
class Place:
    """The entry of a suite that a test belongs to, with the suite's baseline and accepted findings."""

    suite: Suite
    baseline: Baseline | None
    entry: Entry
    accepted: Accepted | None


class SuiteFile(pytest.File):
    """A suite file, see docs/ci.md."""

    def collect(self) -> Iterator[pytest.Item]:
        try:
            suite = read_suite(self.path)
            baseline = None if suite.baselines is None else Baseline.read(suite.baselines)
            for entry in suite.entries:
                yield from self._items(suite, baseline, entry)
        except EXPECTED_ERRORS as error:
            raise self.CollectError(printable(error)) from None

    def _items(self, suite: Suite, baseline: Baseline | None, entry: Entry) -> Iterator[pytest.Item]:
        given = replay_arguments(entry)
        place = Place(suite, baseline, entry, given.pop("accepted"))
        op, numbers = given.pop("op"), given.pop("records")
        # A test may change the current folder, to which an entry's paths are relative.
        given["kernel"] = in_folder(entry.kernel, Path.cwd())
        asked = RecordRequest(op, None if numbers is None else ",".join(map(str, numbers)), given)
        made = ExitStack()
        self.config.add_cleanup(made.close)
        path = made.enter_context(store_of(entry))
        for chosen in select_records(absolute_address(path), asked, f"{entry.name}-"):
            yield SuiteItem.from_parent(self, name=chosen.id, chosen=chosen, place=place)


class SuiteItem(RecordItem):
    """A record of an entry, judged as `gdnbench suite` judges it."""

    def __init__(self, *, place: Place, **rest: Any) -> None:
        super().__init__(**rest)
        self._place = place

    def conclude(self, case: Case) -> None:
        from gdnbench.pytest_plugin.case import Mismatch

        place, result = self._place, case.result(accepted=self._place.accepted)
        today = datetime.now(UTC).date()
        verdict = judge_record(place.entry, result, place.suite.known, place.baseline, today)
        told = printable(f"{verdict.outcome}: {verdict.reason}")
        if verdict.skipped or (verdict.failures and verdict.exit_code is Exit.CANNOT_RUN):
            pytest.skip(told)
        if verdict.failures:
            again = shlex.join(replay_words(place.entry, result.number))
            raise Mismatch(f"{told}\n\n{case.text(result)}\nagain: {printable(again)}")
        if verdict.excused:
            pytest.xfail(told)
