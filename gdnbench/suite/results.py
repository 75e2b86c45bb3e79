"""The folder that a suite leaves: run stores, summary.json, junit.xml and summary.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from gdnbench.errors import BadInputError
from gdnbench.provenance import process_info, provenance
from gdnbench.suite.export import SCHEMA, summary_json
from gdnbench.suite.junit import to_junit
from gdnbench.suite.markdown import to_markdown
from gdnbench.suite.result import SuiteResult
from gdnbench.whole_file import replace_text

SUMMARY, JUNIT, MARKDOWN, RUNS = "summary.json", "junit.xml", "summary.md", "runs"
_OURS = {SUMMARY, JUNIT, MARKDOWN, RUNS}


class Results:
    """Takes over `folder`: one that is not there, is empty, or has the results of an earlier run, which are
    removed. BadInputError for any other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made_by = {"provenance": provenance(), "process": process_info()}
        there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if folder.exists() and not folder.is_dir():
            raise BadInputError(f"{folder} is a file; -o names the folder that results are written into")
        if there and (strange := there - _OURS or ({min(there)} if SUMMARY not in there else set())):
            what = f"{folder} holds {min(strange)}, which is no result of a suite"
            raise BadInputError(f"{what}: name another folder with -o")
        if SUMMARY in there and json_of(folder / SUMMARY).get("schema") != SCHEMA:
            raise BadInputError(f"{folder / SUMMARY} is of another schema: name another folder with -o")
        for name in there:
            # The summary goes last: without it nobody would know the folder again.
            if name != SUMMARY:
                path = folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        folder.mkdir(parents=True, exist_ok=True)

    def run_store(self, entry: str) -> Path:
        """Where the results of an entry go."""
        (self._folder / RUNS).mkdir(exist_ok=True)
        return self._folder / RUNS / f"{entry}.zarr"

    def write(self, result: SuiteResult, finished: bool) -> None:
        """Write all three summaries; each is there as a whole or as it was."""
        document = summary_json(result, finished) | self._made_by
        replace_text(self._folder / SUMMARY, json.dumps(document, indent=1, allow_nan=False))
        replace_text(self._folder / JUNIT, to_junit(result))
        replace_text(self._folder / MARKDOWN, to_markdown(result, finished))


def json_of(path: Path) -> dict[str, object]:
    """The object that a file of JSON holds; BadInputError if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{path} is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise BadInputError(f"{path} is no summary of a suite")
    return found
