# SPDX-License-Identifier: Apache-2.0
"""The sessions that a page shows, run as a reader runs them and held to what the page says they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
_MARK = re.compile(r"<!-- slow(?:, (?P<folder>[\w-]+) from (?P<variable>\w+)(?P<below>/[\w/-]+)?)? -->$")
_FENCE = re.compile(r"^```(\w*)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "\x01"

_VARIES = (  # the first that fits counts
    r"\d+-\d+-[0-9a-f]{8}(?=/\d)",  # the segment in a record's key
    r"\b(?=[a-f]*\d)(?=\d*[a-f])(?:[0-9a-f]{40}|[0-9a-f]{10}|[0-9a-f]{7})\b",  # a commit
    r"-?\d[\d,]*(?:\.\d+)? s\b",
    r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e[+-]?\d+",
)
_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_INSTEAD = (r"\d+-\d+-[0-9a-f]{8}", r"[0-9a-f]{7,40}", r"-?\d[\d,]*(?:\.\d+)? s", _NUMBER)
_TOKENS = re.compile(rf"\.\.\.|{'|'.join(f'(?P<v{i}>{one})' for i, one in enumerate(_VARIES))}|\s+")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `line`: of the page, its first; `file`: what it is written to, "" for a session.

    `<!-- slow, NAME from VARIABLE/BELOW -->` before it: it needs a folder of packages that readers install to
    NAME. `packages` is (NAME, the folder that has them here), where that is "" without the variable.
    """

    line: int
    file: str
    text: str
    slow: bool
    packages: tuple[str, str] | None = None

    @property
    def lacks(self) -> str:
        """The folder of packages that is needed and is not here, or ""."""
        missing = self.packages is not None and not Path(self.packages[1] or "-").is_dir()
        return self.packages[0] if self.packages is not None and missing else ""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that was run. `wrong`: how what it printed differs from the page, "" if it does not."""

    line: int
    command: str
    printed: str
    wrong: str
    seconds: float


def blocks(page: str) -> list[Block]:
    """Files and sessions of a page, in order; other blocks are left out."""
    found = []
    for match in _FENCE.finditer(page):
        language, file, text = match.groups()
        if not file and language != "console":
            continue
        line = page.count("\n", 0, match.start()) + 2
        mark = _MARK.search(page[: match.start()].rstrip())
        found.append(Block(line, file or "", text, mark is not None, _packages(mark)))
    return found


def _packages(mark: re.Match[str] | None) -> tuple[str, str] | None:
    if mark is None or mark["folder"] is None:
        return None
    folder = os.environ.get(mark["variable"], "")
    return mark["folder"], f"{folder}{mark['below'] or ''}" if folder else ""


def run(chosen: Sequence[Block], folder: Path, cache: Path) -> Iterator[Done]:
    """All blocks in one shell that starts in `folder`, with links to the folders of packages that they need.
    Compiled programs are kept in `cache`: in a new one, nothing is known from before."""
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "GDNBENCH": str(ROOT),
        "PATH": os.pathsep.join((bin_folder, os.environ.get("PATH", ""))),
        "COLUMNS": "200",
        "TERM": "dumb",
        "GDNBENCH_CACHE_DIR": str(cache),
    }
    # Commands reach the shell by a pipe of their own, so that what reads stdin does not eat them.
    source, sink = os.pipe()
    with (
        subprocess.Popen(
            ["bash", "--noprofile", "--norc", f"/dev/fd/{source}"],
            cwd=folder,
            env=environment,
            pass_fds=(source,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as shell,
        os.fdopen(sink, "w", encoding="utf-8") as into,
    ):
        os.close(source)
        assert shell.stdout is not None
        for block in chosen:
            if block.file:
                file = folder / block.file
                if not file.resolve().is_relative_to(folder.resolve()):
                    raise ValueError(f"line {block.line}: {block.file} is in a folder of packages")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
                continue
            if block.packages is not None and not (place := folder / block.packages[0]).exists():
                place.symlink_to(Path(block.packages[1]).resolve())
            for line, command, expected in commands(block):
                begin = time.monotonic()
                printed = _printed(into, shell.stdout, command)
                seconds = time.monotonic() - begin
                yield Done(line, command, printed, difference(expected, printed), seconds)


def commands(block: Block) -> Iterator[tuple[int, str, str]]:
    """Line, command and what it is to print. ValueError for a session that begins with output."""
    lines = block.text.splitlines()
    if not lines or not lines[0].startswith("$ "):
        raise ValueError(f"line {block.line}: a session begins with a command, `$ ...`")
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = start
        while lines[last].endswith("\\"):
            last += 1
        command = "\n".join(lines[start : last + 1]).removeprefix("$ ")
        yield block.line + start, command, "\n".join(lines[last + 1 : stop])


def _printed(into: IO[str], out: IO[str], command: str) -> str:
    """What `command` prints; `$?` is its own for the next one."""
    into.write(f"{command}\n")
    into.write(f"__status=$?; printf '{_END}\\n'; (exit $__status)\n")
    into.flush()
    lines: list[str] = []
    for line in out:
        if line.endswith(f"{_END}\n"):
            return "".join([*lines, line.removesuffix(f"{_END}\n")])
        lines.append(line)
    return "".join([*lines, "(the shell ended)"])


def difference(expected: str, printed: str) -> str:
    """ "" where `printed` is as `expected` says, else the words up to which it is."""
    actual = " ".join(printed.split())
    if re.fullmatch(_pattern(expected.strip()), actual, re.DOTALL):
        return ""
    words = expected.split()
    good, bad = 0, len(words)  # by how many words it still begins so
    while good < bad:
        middle = (good + bad + 1) // 2
        if re.match(_pattern(" ".join(words[:middle])), actual, re.DOTALL):
            good = middle
        else:
            bad = middle - 1
    if good == len(words):
        return "it printed more than the page says"
    after, at = " ".join(words[max(0, good - 6) : good]), " ".join(words[good : good + 8])
    return f"it is as the page says up to {after!r}, and not at {at!r}"


def _pattern(expected: str) -> str:
    """A regular expression of printed text whose line breaks are spaces."""
    parts, end = [], 0
    for match in _TOKENS.finditer(expected):
        parts.append(re.escape(expected[end : match.start()]))
        end = match.end()
        if match[0] == "...":
            parts.append(".*?")
        elif match.lastgroup:
            parts.append(_INSTEAD[int(match.lastgroup[1:])])
        else:  # beside `...`, which may stand for nothing
            beside = expected[: match.start()].endswith("...") or expected[end:].startswith("...")
            parts.append(" *" if beside else " ")
    return "".join([*parts, re.escape(expected[end:])])
