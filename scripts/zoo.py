#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Runs known bugs of other people's kernels: the release that has the bug and the one that does not.

    scripts/zoo                                  every bug of zoo/*.toml
    scripts/zoo flashinfer-block-end-decay       one bug
    scripts/zoo --list                           their names
    scripts/zoo 'vllm-*' --again -v              run again what has a result; show what the commands print

A file of zoo/ names the packages of both sides, the command, what its output must say of the bad side, and
the exit status of both. Packages come from the package index, each without its dependencies, and stay below
--folder; nothing of them is imported by this script. A bug whose fix is in no release has `edit`s, by which
this script changes a copy of the bad release. Commands run with the side's folder first on PYTHONPATH.

What a command prints is kept in --folder, and it runs again only if its packages, edits or words changed.
--json prints the results, and `--page` makes the table of docs/zoo.md from those in zoo/results.json.

Exit status: 0 every bad side is found and every good side is not, 1 one is not so, 2 bad arguments, 3 none of
this, but a package or a command could not be had here.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gdnbench.cli.console import table
from gdnbench.cli.pipes import leave_stdout
from gdnbench.cli.statuses import INTERRUPTED
from gdnbench.errors import BadInputError, Exit
from gdnbench.whole_file import replace_text

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "zoo"
RESULTS = ZOO / "results.json"
CLASSES = ZOO / "classes.toml"
PAGE = ROOT / "docs/zoo.md"
HEADERS = ("bug", "bad side", "good side", "CPU seconds")
SIDES = ("bad", "good")
CELL = 160  # characters of a line that a command printed, in the page
LIMIT = 1800  # seconds of a command
SIDE_FOLDERS = re.compile(r"[^\s:'\"]*/sides/[^/\s]+/")


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces `search`, which occurs once in `file` of the packages, by `replace`."""

    file: str
    search: str
    replace: str


@dataclass(frozen=True, slots=True)
class Side:
    """`packages` are NAME==VERSION. The command ends with `status`, and each regular expression `finds` is
    found in its output; none of `not_finds` is."""

    packages: tuple[str, ...]
    status: int
    finds: tuple[str, ...]
    not_finds: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Bug:
    """`kind` is the class of the bug, `keep` the patterns of files that a package's wheel is unpacked for
    (all if it has none), `synth` the options of `gdnbench synth` that make the command's {record}, `paths`
    folders of the packages that Python's path needs beside their root. `why_not` is why it cannot run."""

    name: str
    title: str
    kind: str
    issue: str
    command: str = ""
    sides: tuple[Side, ...] = ()
    synth: str = ""
    keep: Mapping[str, Sequence[str]] | None = None
    paths: tuple[str, ...] = ()
    note: str = ""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the command of a side ended. `found` has the output's line for each regular expression of the bad
    side that it matches, `wrong` what is not as expected, "" if nothing is; `cannot_run` is a reason."""

    status: int
    found: tuple[str, ...]
    wrong: str
    seconds: int
    cannot_run: str = ""


class CannotRunError(Exception):
    """A package or a program is missing here."""


def read_bug(path: Path) -> Bug:
    """The bug of a file; BadInputError if the file is not well-formed."""
    text = path.read_text(encoding="utf-8")
    try:
        fields = tomllib.loads(text)
        common = tuple(fields.pop("packages", ()))
        edits = tuple(Edit(**edit) for edit in fields.pop("edit", ()))
        bad = _side(fields.pop("bad", None), common, edits, 1)
        good = _side(fields.pop("good", None), common, edits, 0)
        fields["paths"] = tuple(fields.get("paths", ()))
        sides = ()
        if bad is not None and good is not None:
            if not bad.finds:
                raise ValueError("[bad] has no `finds`")
            sides = (bad, Side(good.packages, good.status, good.finds, bad.finds, good.edits))
        elif not fields.get("why_not"):
            raise ValueError("it needs [bad] and [good], or `why_not`")
        return Bug(name=path.stem, sides=sides, **fields)
    except (TypeError, ValueError) as error:
        raise BadInputError(f"{path.name}: {error}; see zoo/README.md") from None


def _side(
    fields: dict[str, Any] | None, common: tuple[str, ...], edits: tuple[Edit, ...], status: int
) -> Side | None:
    if fields is None:
        return None
    edits += tuple(Edit(**edit) for edit in fields.pop("edit", ()))
    packages = (*fields.pop("packages", ()), *common)
    return Side(packages, fields.pop("status", status), tuple(fields.pop("finds", ())), (), edits, **fields)


def read_bugs(folder: Path = ZOO) -> list[Bug]:
    return [read_bug(path) for path in sorted(folder.glob("*.toml")) if path.name != CLASSES.name]


def install(package: str, keep: Sequence[str], folder: Path) -> Path:
    """The folder of a package in `folder`, unpacked if it is not there yet."""
    named = hashlib.sha256("".join(keep).encode()).hexdigest()[:8] if keep else "whole"
    target = folder / "packages" / f"{package}-{named}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        wheels, made = Path(temporary) / "wheels", Path(temporary) / "made"
        print(f"fetching {package}", file=sys.stderr, flush=True)
        for command in (
            ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(wheels), package],
            ["install", "--no-deps", "--no-compile", "--no-index", "--target", str(made)],
        ):
            if command[0] == "install":
                (wheel,) = wheels.iterdir()
                if keep:
                    _unpack(wheel, keep, made)
                    break
                command = [*command, str(wheel)]
            ran = subprocess.run([*pip, *command], capture_output=True, text=True)
            if ran.returncode:
                reason = (ran.stderr.strip().splitlines() or ["pip said nothing"])[-1]
                raise CannotRunError(f"pip {command[0]} {package}: {reason}")
        if not target.exists():  # another process may have made it meanwhile
            made.rename(target)
    return target


def _unpack(wheel: Path, keep: Sequence[str], folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if any(fnmatchcase(name, one) for one in keep)]
        if not names:
            raise CannotRunError(f"no file of {wheel.name} is called {' or '.join(keep)}")
        archive.extractall(folder, names)


def prepare(bug: Bug, which: str, folder: Path) -> Path:
    """A folder with the packages of a side, edited."""
    side = bug.sides[SIDES.index(which)]
    root = folder / "sides" / f"{bug.name}-{which}"
    shutil.rmtree(root, ignore_errors=True)
    for package in side.packages:
        keep = (bug.keep or {}).get(package.partition("==")[0], ())
        shutil.copytree(install(package, keep, folder), root, copy_function=_link, dirs_exist_ok=True)
    for edit in side.edits:
        path = root / edit.file
        text = path.read_text(encoding="utf-8")
        if text.count(edit.search) != 1:
            raise BadInputError(
                f"{bug.name}: {edit.file} has {text.count(edit.search)} of {edit.search!r}, not one"
            )
        if edit.search.count("\n") != edit.replace.count("\n"):
            raise BadInputError(
                f"{bug.name}: an edit of {edit.file} moves the lines below, which findings name"
            )
        path.unlink()  # a link to the file of the package
        path.write_text(text.replace(edit.search, edit.replace), encoding="utf-8")
    return root


def _link(source: str, target: str) -> None:
    Path(target).unlink(missing_ok=True)
    os.link(source, target)


def run_side(bug: Bug, which: str, folder: Path, again: bool, verbose: bool) -> Outcome:
    """What the command of a side prints, compared with what the side expects. It runs if nothing is kept of
    an equal side with an equal command, or `again`."""
    side = bug.sides[SIDES.index(which)]
    kept = folder / "outputs" / f"{_key(bug, side)}.json"
    ran = None if again else _kept(kept)
    if ran is None or ran["status"] == Exit.CANNOT_RUN:
        before = _processor_seconds()
        print(f"{bug.name}: {which} side", file=sys.stderr, flush=True)
        try:
            text, status = _run(bug, prepare(bug, which, folder), folder)
        except CannotRunError as error:
            return Outcome(Exit.CANNOT_RUN, (), "", 0, str(error))
        kept.parent.mkdir(exist_ok=True)
        ran = {
            "bug": bug.name,
            "side": which,
            "status": status,
            "seconds": _processor_seconds() - before,
            "lines": text.splitlines(),
        }
        replace_text(kept, json.dumps(ran, indent=1))
    if verbose:
        print("\n".join(ran["lines"]), file=sys.stderr)
    return judge(side, ran["status"], ran["lines"], bug.sides[0].finds, ran["seconds"])


def _kept(path: Path) -> dict[str, Any] | None:
    """What was kept of a side; None if nothing was, or if it cannot be read."""
    try:
        ran = json.loads(path.read_text(encoding="utf-8"))
        return ran if {"status", "seconds", "lines"} <= ran.keys() else None
    except (FileNotFoundError, ValueError, AttributeError):
        return None


def _key(bug: Bug, side: Side) -> str:
    """Names what a side's output comes from: not what is expected of it."""
    code = re.findall(r"\{zoo\}/(\S+)", bug.command)
    programs = [(ZOO / one).read_text(encoding="utf-8") for one in code] or [""]
    inputs = [side.packages, bug.keep, bug.command, bug.synth, bug.paths, *programs, *map(asdict, side.edits)]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]


def judge(side: Side, status: int, output: Sequence[str], bug_finds: Sequence[str], seconds: int) -> Outcome:
    """What the lines that a side's command prints say; `bug_finds` are what the bad side must say."""
    lines = [SIDE_FOLDERS.sub("", line.strip()) for line in output]
    matches = [next((line for line in lines if re.search(one, line)), "") for one in bug_finds]
    first = tuple(dict.fromkeys(filter(None, matches)))
    wrong = [f"nothing says {one!r}" for one in side.finds if not any(re.search(one, at) for at in lines)]
    wrong += [f"{one!r} is said" for one in side.not_finds if any(re.search(one, at) for at in lines)]
    if status == Exit.CANNOT_RUN and side.status != Exit.CANNOT_RUN:
        return Outcome(status, first, "", seconds, lines[-1] if lines else "the command printed nothing")
    if status != side.status:
        wrong.insert(0, f"exit status {status} instead of {side.status}")
    return Outcome(status, first, "; ".join(wrong), seconds)


def _run(bug: Bug, root: Path, folder: Path) -> tuple[str, int]:
    paths = [str(root), *(str(root / path) for path in bug.paths), str(ROOT), str(ROOT / "kernels")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "COLUMNS": "400",
    }
    record = folder / "records" / f"{bug.name}.zarr"
    words = [word.format(record=record, zoo=ZOO, root=root) for word in shlex.split(bug.command)]
    if bug.synth:
        shutil.rmtree(record, ignore_errors=True)
        made, status = _output(["gdnbench", "synth", str(record), *shlex.split(bug.synth)], environment)
        if status:
            raise BadInputError(f"{bug.name}: gdnbench synth: {made.strip().splitlines()[-1]}")
    return _output(words, environment)


def _output(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int]:
    programs = {"gdnbench": [sys.executable, "-m", "gdnbench"], "python": [sys.executable]}
    command = [part for word in words for part in programs.get(word, [word])]
    try:
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise CannotRunError(f"no end after {LIMIT} s") from None
    return ran.stdout, ran.returncode


def _processor_seconds() -> int:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(used.ru_utime + used.ru_stime)


def describe(which: str, outcome: Outcome) -> str:
    """A side's cell of the table."""
    if outcome.cannot_run:
        return f"cannot run: {outcome.cannot_run}"
    if outcome.wrong:
        return outcome.wrong
    return "found" if which == "bad" else "clean" if outcome.status == Exit.PASS else "not found"


@contextmanager
def _only_one(bug: Bug, folder: Path) -> Iterator[None]:
    """Wait while another process runs this bug: its sides have one folder, which each run makes anew."""
    locks = folder / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / bug.name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{bug.name}: waiting for another process that runs it", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_bug(bug: Bug, folder: Path, again: bool, verbose: bool) -> dict[str, Any]:
    """The result of a bug, as --json prints it."""
    with _only_one(bug, folder):
        outcomes = {
            which: run_side(bug, which, folder, again, verbose)
            for which, _ in zip(SIDES, bug.sides, strict=False)
        }
    return {
        "name": bug.name,
        "why_not": bug.why_not,
        **{which: asdict(outcome) for which, outcome in outcomes.items()},
    }


def row(result: Mapping[str, Any]) -> tuple[str, ...]:
    if result["why_not"]:
        return (result["name"], f"not run: {result['why_not']}", "", "")
    outcomes = {
        which: Outcome(**{**result[which], "found": tuple(result[which]["found"])}) for which in SIDES
    }
    seconds = ", ".join(str(outcome.seconds) for outcome in outcomes.values())
    return (result["name"], *(describe(which, outcome) for which, outcome in outcomes.items()), seconds)


def exit_status(results: Sequence[Mapping[str, Any]]) -> int:
    outcomes = [result[which] for result in results if not result["why_not"] for which in SIDES]
    if any(outcome["wrong"] for outcome in outcomes):
        return Exit.MISMATCH
    return Exit.CANNOT_RUN if any(outcome["cannot_run"] for outcome in outcomes) else Exit.PASS


def page_table(bugs: Sequence[Bug], results: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of docs/zoo.md."""
    lines = ["| bug | bad | good | what is printed | CPU seconds |", "|---|---|---|---|---|"]
    for bug in bugs:
        title = f"[`{bug.name}`]({bug.issue}): {bug.title}"
        if bug.why_not:
            lines.append(f"| {title} | | | not run: {bug.why_not} | |")
            continue
        result = results.get(bug.name)
        if result is None:
            continue
        _, bad, good, seconds = row(result)
        named = [side.packages[0] for side in bug.sides]
        named[1] += " with the fix" * (named[0] == named[1])
        said = "<br>".join(f"`{_shortened(line)}`" for line in result["bad"]["found"])
        note = f"<br>{bug.note}" if bug.note else ""
        lines.append(f"| {title} | {named[0]}: {bad} | {named[1]}: {good} | {said}{note} | {seconds} |")
    return "\n".join(lines)


def _shortened(line: str) -> str:
    return (line if len(line) <= CELL else f"{line[:CELL]}...").replace("`", "'").replace("|", "\\|")


def class_table(classes: Sequence[Mapping[str, str]]) -> str:
    """The table of classes of docs/zoo.md."""
    lines = ["| class | seen in | test |", "|---|---|---|"]
    for one in classes:
        file, _, name = one["test"].partition("::")
        lines.append(f"| {one['name']} | {one['seen']} | [{name}](../{file}) |")
    return "\n".join(lines)


def read_classes() -> list[dict[str, str]]:
    classes: list[dict[str, str]] = tomllib.loads(CLASSES.read_text(encoding="utf-8"))["class"]
    return classes


def made_page(page: str, bugs: Sequence[Bug], results: Sequence[Mapping[str, Any]]) -> str:
    """`page` with both tables made anew."""
    by_name = {one["name"]: one for one in results}
    for begin, end, made in (
        ("<!-- made by scripts/zoo.py --page -->\n", "<!-- end -->", page_table(bugs, by_name)),
        ("<!-- classes -->\n", "<!-- end of classes -->", class_table(read_classes())),
    ):
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{made}\n{end}{rest.partition(end)[2]}"
    return page


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="patterns of names of bugs; all if left out")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "zoo", help="default %(default)s")
    parser.add_argument("--again", action="store_true", help="run commands whose output is kept, too")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--page", action="store_true", help="make the table of docs/zoo.md; runs nothing")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what the commands print")
    options = parser.parse_args(arguments)
    try:
        bugs = read_bugs()
        if options.page:
            results = json.loads(RESULTS.read_text(encoding="utf-8"))
            PAGE.write_text(made_page(PAGE.read_text(encoding="utf-8"), bugs, results), encoding="utf-8")
            return Exit.PASS
        names = options.names
        unknown = [one for one in names if not any(fnmatchcase(bug.name, one) for bug in bugs)]
        if unknown:
            raise BadInputError(f"no bug is called {' or '.join(unknown)}; --list prints the names")
        bugs = [bug for bug in bugs if not names or any(fnmatchcase(bug.name, one) for one in names)]
        if options.list:
            _print_names(bugs)
            return Exit.PASS
        return _run_all(bugs, options)
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_INPUT
    except OSError as error:  # such as no space left
        print(f"error: {error.filename or options.folder}: {error.strerror or error}", file=sys.stderr)
        return Exit.BAD_INPUT


def _print_names(bugs: Sequence[Bug]) -> None:
    """A reader that has seen enough (`| head -1`) is no failure."""
    try:
        print("\n".join(bug.name for bug in bugs), flush=True)
    except BrokenPipeError:
        leave_stdout()


def _run_all(bugs: Sequence[Bug], options: argparse.Namespace) -> int:
    folder = options.folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"--folder {options.folder}: {error.strerror}") from None
    results, interrupted, began = [], False, time.monotonic()
    try:
        for bug in bugs:
            results.append(run_bug(bug, folder, options.again, options.verbose))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        interrupted = True
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        print(table(HEADERS, [row(result) for result in results], right=HEADERS[-1:]))
    print(f"{len(results)} bugs, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return INTERRUPTED if interrupted else exit_status(results)


if __name__ == "__main__":
    sys.exit(main())
