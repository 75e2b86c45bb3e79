# SPDX-License-Identifier: Apache-2.0
"""Stores as arguments of pytest: each record is a test with the kernel of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gdnbench.pytest_plugin.marks import parse_request
from gdnbench.pytest_plugin.selection import Chosen, select_records
from gdnbench.pytest_plugin.stash import MARK, replays_of

if TYPE_CHECKING:
    from gdnbench.pytest_plugin.case import Case


class StoreFile(pytest.File):
    """A store in a .zip."""

    def collect(self) -> Iterator[pytest.Item]:
        yield from _items(self)


class StoreFolder(pytest.Directory):
    """A store in a folder."""

    def collect(self) -> Iterator[pytest.Item]:
        yield from _items(self)


def _items(parent: pytest.File | pytest.Directory) -> Iterator[pytest.Item]:
    chosen = select_records(parent.path, parse_request({}, parent.config))
    if not chosen:
        raise pytest.Collector.CollectError(f"{parent.path} has no record")
    for one in chosen:
        yield RecordItem.from_parent(parent, name=one.id, chosen=one)


class RecordItem(pytest.Item):
    """A test that replays and judges a record."""

    def __init__(self, *, chosen: Chosen, **rest: Any) -> None:
        super().__init__(**rest)
        self._chosen = chosen
        self._case: Case | None = None
        self.add_marker(MARK)

    def setup(self) -> None:
        from gdnbench.pytest_plugin.case import open_case

        self._case = open_case(self._chosen, self, replays_of(self.config))

    def runtest(self) -> None:
        assert self._case is not None, "it is opened by setup"
        self.conclude(self._case)

    def conclude(self, case: Case) -> None:
        """Raise the test's outcome unless the record passes."""
        case.check()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from gdnbench.pytest_plugin.case import Mismatch

        return str(excinfo.value) if isinstance(excinfo.value, Mismatch) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        # With the path: pytest would print dots in the name as "::".
        return self.path, None, f"{self.path.name} {self.name}"
