"""Reads from the text of a Python file what it imports: by statements, and by calls with literal arguments.

The calls are `importlib.import_module`, `__import__`, `runpy.run_module`, `runpy.run_path` and
`importlib.util.spec_from_file_location`, also under names that `from ... import ... as` gives them.
"""

from __future__ import annotations

import ast
import posixpath
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

_STATEMENT = re.compile(rb"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([\w., \t]+))", re.MULTILINE)
_BEGINS = re.compile(rb"^[ \t]*(?:from[ \t]+\S+[ \t]+)?import\b.*(?<!\\)$", re.MULTILINE)
_NEEDS_PARSER = re.compile(rb"import_module|__import__|run_module|run_path|spec_from_file_location")
_WORD = re.compile(rb"\bimport\b")
BY_NAME = ("import_module", "__import__", "run_module")
BY_PATH = {"run_path": (0, "path_name"), "spec_from_file_location": (1, "location")}
"""Functions that load a file, with the position and the name of the argument that is its path."""
_OWN = ("__name__", "__package__", "__spec__")
_SAME_PATH = ("Path", "PurePath", "str", "fspath", "abspath", "realpath", "resolve", "absolute", "as_posix")
_FILE = "__file__"


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path in a call: from the folder of the file that has the call, or from the current folder."""

    beside: bool
    path: str

    @property
    def parent(self) -> FilePath:
        up = self.path in ("", "..") or self.path.endswith("/..")
        return FilePath(self.beside, posixpath.join(self.path, "..") if up else posixpath.dirname(self.path))

    def join(self, *parts: str) -> FilePath:
        return FilePath(
            self.beside and not any(map(posixpath.isabs, parts)), posixpath.join(self.path, *parts)
        )


@dataclass(frozen=True, slots=True)
class Imports:
    """The first parts of the names of modules, paths of files, and the lines (1-based) of calls whose module
    or file is computed."""

    names: frozenset[str] = frozenset()
    paths: frozenset[FilePath] = frozenset()
    computed: tuple[int, ...] = ()


def read_imports(text: bytes) -> Imports:
    """What a file imports. Import lines inside strings count too, since the strings may be run. If the file
    does not parse, import statements that begin a line count. Relative imports are of the file's own package
    and are left out."""
    names = set()
    for source, listed in _STATEMENT.findall(text):
        parts: Iterable[bytes] = [source] if source else listed.split(b",")
        names |= {
            part.split()[0].partition(b".")[0].decode(errors="replace") for part in parts if part.split()
        }
    if not _NEEDS_PARSER.search(text) and len(_WORD.findall(text)) == len(_BEGINS.findall(text)):
        return Imports(frozenset(names))  # every import begins a line; a package may have thousands of files
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the text, such as an escape that is none
            nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Imports(frozenset(names))
    paths: set[FilePath] = set()
    computed: list[int] = []
    aliases: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
            if not node.level and node.module:
                names.add(node.module.partition(".")[0])
    for call in nodes:
        if not isinstance(call, ast.Call):
            continue
        function = _last_name(call.func)
        function = aliases.get(function, function)
        if function in BY_NAME:
            name = _first_part(call)
            if name is None:
                computed.append(call.lineno)
            elif name:
                names.add(name)
        elif function in BY_PATH:
            path = _path(_argument(call, *BY_PATH[function]))
            if path is None:
                computed.append(call.lineno)
            else:
                paths.add(path)
    return Imports(frozenset(names), frozenset(paths), tuple(sorted(computed)))


def _last_name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    if len(call.args) > position:
        return call.args[position]
    return next((one.value for one in call.keywords if one.arg == name), None)


def _first_part(call: ast.Call) -> str | None:
    """The first part of the module that a call names; empty for one of the file's own package, None if it is
    computed."""
    module = call.args[0] if call.args else None
    module = module or _argument(call, 0, "name") or _argument(call, 0, "mod_name")
    start = _start(module)
    if start is not None and start.startswith("."):
        package = _argument(call, 1, "package")
        return "" if package is None or _is_own(package) else _first_of(_start(package))
    return "" if _is_own(module) else _first_of(start)


def _first_of(start: str | None) -> str | None:
    return None if start is None else start.partition(".")[0]


def _start(node: ast.expr | None) -> str | None:
    """The text of a literal, or the literal beginning of a text if that has the whole first part."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr) and node.values:
        begin = _start(node.values[0])
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        begin = _start(node.left)
    else:
        return None
    return begin if begin is not None and "." in begin else None


def _is_own(node: ast.expr | None) -> bool:
    """Whether a text is, or begins with, the name of the file's own module or package."""
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and _is_own(node.values[0])
    if isinstance(node, ast.FormattedValue):
        return _is_own(node.value)
    if isinstance(node, ast.BinOp):
        return _is_own(node.left)
    if isinstance(node, ast.Attribute):
        return _is_own(node.value)
    return isinstance(node, ast.Name) and node.id in _OWN


def _path(node: ast.expr | None) -> FilePath | None:
    """The path that an expression of literals and `__file__` stands for; None for any other."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return FilePath(False, node.value)
    if isinstance(node, ast.Name) and node.id == _FILE:
        return FilePath(True, _FILE)
    if isinstance(node, ast.Attribute) and node.attr == "parent":
        inner = _path(node.value)
        return None if inner is None else inner.parent
    if isinstance(node, ast.Subscript) and _last_name(node.value) == "parents":
        inner = _path(node.value.value) if isinstance(node.value, ast.Attribute) else None
        level = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if inner is None or not isinstance(level, int):
            return None
        for _ in range(level + 1):
            inner = inner.parent
        return inner
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _joined([node.left, node.right])
    return _path_of_call(node) if isinstance(node, ast.Call) else None


def _path_of_call(call: ast.Call) -> FilePath | None:
    function = _last_name(call.func)
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if function in ("join", "Path", "PurePath") and call.args:
        return _joined(call.args)
    if function == "dirname" and call.args:
        inner = _path(call.args[0])
        return None if inner is None else inner.parent
    if function == "joinpath" and receiver is not None:
        return _joined([receiver, *call.args])
    if function == "with_name" and receiver is not None:
        inner = _path(receiver)
        named = _path(call.args[0]) if call.args else None
        return None if inner is None or named is None else inner.parent.join(named.path)
    if function in _SAME_PATH:
        return _path(call.args[0] if call.args else receiver)
    return None


def _joined(parts: list[ast.expr]) -> FilePath | None:
    found = [_path(part) for part in parts]
    first, *rest = found
    if first is None or not all(one is not None and not one.beside for one in rest):
        return None
    return first.join(*(one.path for one in rest if one is not None))
