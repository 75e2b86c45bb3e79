# SPDX-License-Identifier: Apache-2.0
"""The results folder of a suite: run stores, summary.json, junit.xml and summary.md."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from gdnbench.errors import BadInputError
from gdnbench.provenance import process_info, provenance
from gdnbench.suite.export import SCHEMA, summary_json
from gdnbench.suite.junit import to_junit
from gdnbench.suite.markdown import to_markdown
from gdnbench.suite.result import SuiteResult
from gdnbench.whole_file import replace_text

SUMMARY, JUNIT, MARKDOWN, RUNS = "summary.json", "junit.xml", "summary.md", "runs"
_OURS = {SUMMARY, JUNIT, MARKDOWN, RUNS}
_UNFINISHED = re.compile(rf"\.({SUMMARY}|{JUNIT}|{MARKDOWN})\.[0-9a-f]{{16}}")
"""Temporary files that a killed `replace_text` leaves."""


class Results:
    """Takes over `folder`, which must not exist, be empty, or hold results of an earlier run; locks it until
    exit.

    BadInputError for any other folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made_by = {"provenance": provenance(), "process": process_info()}
        if folder.exists() and not folder.is_dir():
            raise BadInputError(f"{folder} is a file; -o names the folder that results are written into")
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check()
        except BlockingIOError:
            os.close(self._lock)
            what = f"another suite is writing its results into {folder}"
            raise BadInputError(f"{what}: wait for it, or name another folder with -o") from None
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def _check(self) -> None:
        """BadInputError if the folder holds anything but results."""
        there = {path.name for path in self._folder.iterdir() if not _UNFINISHED.fullmatch(path.name)}
        if there and (strange := there - _OURS or ({min(there)} if SUMMARY not in there else set())):
            what = f"{self._folder} holds {min(strange)}, which is no result of a suite"
            raise BadInputError(f"{what}: name another folder with -o")
        if SUMMARY in there and read_json_object(self._folder / SUMMARY).get("schema") != SCHEMA:
            raise BadInputError(f"{self._folder / SUMMARY} is of another schema: name another folder with -o")

    def begin(self, result: SuiteResult) -> None:
        """Replace the folder's content by `result`, which has no entries yet, so that earlier results are
        never taken for this run's."""
        self._write_summary(result, finished=False)  # first, because it identifies the folder
        for path in self._folder.iterdir():
            if path.name != SUMMARY:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.write(result, finished=False)

    def run_store(self, entry: str) -> Path:
        """The path for the results of an entry."""
        (self._folder / RUNS).mkdir(exist_ok=True)
        return self._folder / RUNS / f"{entry}.zarr"

    def write(self, result: SuiteResult, finished: bool) -> None:
        """Write all three summaries, each atomically."""
        self._write_summary(result, finished)
        replace_text(self._folder / JUNIT, to_junit(result))
        replace_text(self._folder / MARKDOWN, to_markdown(result, finished))

    def _write_summary(self, result: SuiteResult, finished: bool) -> None:
        document = summary_json(result, finished) | self._made_by
        replace_text(self._folder / SUMMARY, json.dumps(document, indent=1, allow_nan=False))


def read_json_object(path: Path) -> dict[str, object]:
    """The object in a JSON file; BadInputError if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{path} is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise BadInputError(f"{path} is no summary of a suite")
    return found
