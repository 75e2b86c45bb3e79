# SPDX-License-Identifier: Apache-2.0
"""Where a kernel failed: the innermost line of its own code, by an exception or by faulthandler's text."""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import dropwhile
from pathlib import Path
from types import TracebackType
from typing import Any

from gdnbench.printable import printable, without_escapes

MOST_SOURCE = 100
"""Characters of a source line in a message of one line."""

MOST_LINES = 400
"""Lines of a traceback that are kept: half from its beginning, half from its end."""

_HARNESS = Path(__file__).resolve().parent
_LIBRARIES = tuple(
    {str(Path(path).resolve()) for key, path in sysconfig.get_paths().items() if "lib" in key}
    | {str(Path(path)) for key, path in sysconfig.get_paths().items() if "lib" in key}
)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of code: `file` relative to the current folder if it is below it, `function` empty at a line
    that was never run, `source` without indentation and empty if it cannot be read."""

    file: str
    line: int
    function: str
    source: str

    @property
    def is_harness(self) -> bool:
        """Whether it is of this package, not of a kernel."""
        return _is_harness(str(Path(self.file).absolute()))

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")

    def __str__(self) -> str:
        """`mine.py:6 in check: return x @ y`, for a message of one line."""
        source = self.source if len(self.source) <= MOST_SOURCE else f"{self.source[:MOST_SOURCE]}..."
        return printable(f"{self.place}: {source}" if source else self.place)


@dataclass(frozen=True, slots=True)
class KernelError:
    """What ended a kernel: `text`, one line without its place; `frame`, the innermost line of the kernel's
    own code, None if there is none; `traceback`, all lines from the kernel's call to the error."""

    text: str
    frame: Frame | None = None
    traceback: str = ""

    @property
    def reason(self) -> str:
        """`RuntimeError: shapes differ (mine.py:6 in check: return x @ y)`"""
        return self.text if self.frame is None else f"{self.text} ({self.frame})"

    def of(self, kernel: str) -> KernelError:
        """The same of another kernel than the one under test."""
        return replace(self, text=f"{kernel}: {self.text}")

    def to_json(self) -> dict[str, Any]:
        frame = self.frame
        where = (None,) * 4 if frame is None else (frame.file, frame.line, frame.function, frame.source)
        named = zip(("file", "line", "function", "source"), where, strict=True)
        return {"text": self.text, **dict(named), "traceback": self.traceback}

    @classmethod
    def from_json(cls, plain: dict[str, Any] | None) -> KernelError | None:
        if plain is None:
            return None
        frame = None
        if plain["file"] is not None:
            frame = Frame(plain["file"], plain["line"], plain["function"], plain["source"])
        return cls(plain["text"], frame, plain["traceback"])


@dataclass(frozen=True, slots=True)
class _Spot:
    file: str
    line: int
    function: str


def frame_of_error(error: BaseException) -> Frame | None:
    """The innermost line of the kernel's own code at which `error` was raised. If a library raised it from an
    exception that the kernel's own code raised, such as a compiler that runs it, the line of that one."""
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return Frame(_shown(error.filename), error.lineno, "", (error.text or "").strip())
    spots = _spots(error.__traceback__)
    own = _own(spots)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and (own is None or _is_library(spots[-1].file)):
        found = _own(_spots(cause.__traceback__))
        if found is not None and not _is_harness(found.file):
            own = found
    return _frame(_as_told(error, own) or own)


def _as_told(error: BaseException, own: _Spot | None) -> _Spot | None:
    """The line that a compiler's exception names, which may be another than the one that called the compiler:
    CuTe DSL's by `filename` and `line`, Triton's as a `node` of the function whose text is `src`."""
    file, line = getattr(error, "filename", None), getattr(error, "line", None)
    if isinstance(file, str) and isinstance(line, int) and not isinstance(error, OSError):
        known = own is not None and (own.file, own.line) == (file, line)  # and its function too
        return None if known or not Path(file).is_file() else _Spot(file, line, "")
    source, line = getattr(error, "src", None), getattr(getattr(error, "node", None), "lineno", None)
    if not isinstance(source, str) or not isinstance(line, int) or own is None:
        return None
    before, found, _ = "".join(linecache.getlines(own.file)).partition(source.strip())
    if not found:
        return None  # of another file
    function = re.match(r"def (\w+)", source)
    return _Spot(own.file, before.count("\n") + line, function[1] if function else "")


def traceback_of_error(error: BaseException) -> str:
    """The traceback as Python prints it, from the call of the kernel on, with the exceptions that it came
    from. Without escape codes."""
    whole = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = whole
    while one is not None:
        kept = list(dropwhile(lambda frame: _is_harness(frame.filename), one.stack))
        one.stack[:] = kept or one.stack
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return _cut(without_escapes("".join(whole.format())).rstrip("\n").split("\n"))


def post_mortem_depth(trace: TracebackType | None) -> int:
    """How many frames above the innermost one the kernel's own innermost line is; 0 if it has none."""
    spots = _spots(trace)
    own = _own(spots)
    if own is None:
        return 0
    return next(
        above for above, one in enumerate(reversed(spots)) if (one.file, one.line) == (own.file, own.line)
    )


def error_of_dump(text: str, dump: str) -> KernelError:
    """What ended a process, `text`, with the place in what faulthandler wrote as it did."""
    threads = list(_threads(dump))
    for spots in threads:
        own = _own(spots)
        if own is not None and not _is_harness(own.file):
            inner = list(dropwhile(lambda spot: _is_harness(spot.file) or _is_library(spot.file), spots))
            lines = [line for spot in inner for line in _dump_lines(spot)]
            return KernelError(text, _frame(own), _cut(["Traceback (most recent call last):", *lines, text]))
    return KernelError(text)


def _threads(dump: str) -> Iterator[list[_Spot]]:
    """The threads in what faulthandler wrote, outermost frame first: the one that it wrote for, then the one
    that serves requests."""
    threads: list[tuple[bool, list[_Spot]]] = []
    for line in dump.splitlines():
        if re.match(r"(Current thread|Thread) 0x", line):
            threads.append((line.startswith("Current"), []))
        elif threads and (found := re.match(r'  File "(.*)", line (\d+) in (.*)$', line)):
            threads[-1][1].insert(0, _Spot(found[1], int(found[2]), found[3]))
    current = [spots for is_current, spots in threads if is_current]
    serving = [spots for _, spots in threads if any(one.function == "serve_requests" for one in spots)]
    yield from (*current, *serving)


def _dump_lines(spot: _Spot) -> Iterator[str]:
    yield f'  File "{_shown(spot.file)}", line {spot.line}, in {spot.function}'
    if source := _source(spot):
        yield f"    {source}"


def _cut(lines: Sequence[str]) -> str:
    if len(lines) <= MOST_LINES:
        return "\n".join(lines)
    half = MOST_LINES // 2
    left_out = f"  [{len(lines) - 2 * half} lines left out]"
    return "\n".join([*lines[:half], left_out, *lines[-half:]])


def _spots(trace: TracebackType | None) -> list[_Spot]:
    """The frames of a traceback, outermost first."""
    frames = traceback.walk_tb(trace)
    return [_Spot(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames]


def _own(spots: Sequence[_Spot]) -> _Spot | None:
    """The innermost line of the kernel's own code: of no library; else of the package that was called first;
    else of this package."""
    for spot in reversed(spots):
        if not _is_harness(spot.file) and not _is_library(spot.file):
            # A function that a compiler made of a line has that line, inside of the function that is there.
            return next(one for one in spots if (one.file, one.line) == (spot.file, spot.line))
    called = [spot for spot in spots if not _is_harness(spot.file)]
    packages = [_INSTALLED.split(spot.file)[-1].split("/")[0] for spot in called]
    same = [spot for spot, package in zip(called, packages, strict=True) if package == packages[0]]
    return same[-1] if same else spots[-1] if spots else None


def _is_harness(file: str) -> bool:
    return file.startswith(f"{_HARNESS}/")


def _is_library(file: str) -> bool:
    """Of Python or an installed package, or of no file, such as `<frozen runpy>`; our kernels are neither."""
    if file.startswith("<"):
        return True
    if f"{_KERNELS}/" in file:
        return False
    if _INSTALLED.search(file) is not None or any(file.startswith(f"{path}/") for path in _LIBRARIES):
        return True
    return _is_installed(Path(file).parent)


@cache
def _is_installed(folder: Path) -> bool:
    """Whether pip put the package in `folder` where it is, such as into a folder of --target."""
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return any(folder.glob("*.dist-info"))


_KERNELS = "/gdnbench_kernels"


def _frame(spot: _Spot | None) -> Frame | None:
    return None if spot is None else Frame(_shown(spot.file), spot.line, spot.function, _source(spot))


def _source(spot: _Spot) -> str:
    return linecache.getline(spot.file, spot.line).strip()


def _shown(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file
