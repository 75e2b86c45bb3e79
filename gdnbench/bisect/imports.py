# SPDX-License-Identifier: Apache-2.0
"""Reads from the text of a Python file what it imports: by statements, and by calls with literal arguments.

The calls are `importlib.import_module`, `__import__`, `runpy.run_module`, `runpy.run_path`,
`importlib.util.spec_from_file_location`, loaders of `importlib.machinery` and their like, also under names
that `from ... import ... as` gives them. A name that the file binds once is read as its value. What is added
to `sys.path` are folders that imports are looked for in.
"""

from __future__ import annotations

import ast
import copy
import posixpath
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

_STATEMENT = re.compile(rb"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([\w., \t]+))", re.MULTILINE)
_BEGINS = re.compile(rb"^[ \t]*(?:from[ \t]+\S+[ \t]+)?import\b.*(?<!\\)$", re.MULTILINE)
_WORD = re.compile(rb"\bimport\b")
BY_NAME = ("import_module", "__import__", "run_module", "resolve_name")
BY_PATH = {
    "run_path": (0, "path_name"),
    "spec_from_file_location": (1, "location"),
    "SourceFileLoader": (1, "path"),
    "SourcelessFileLoader": (1, "path"),
    "ExtensionFileLoader": (1, "path"),
    "zipimporter": (0, "path"),
    "addsitedir": (0, "sitedir"),
}
"""Functions that load a file or look into a folder, with the position and the name of the argument that is
its path."""
_LOADERS = (*BY_NAME, *BY_PATH)
_FIND_SPEC, _OF_SPEC = "find_spec", "module_from_spec"
_NEEDS_PARSER = re.compile(
    "|".join(
        (
            *_LOADERS,
            _OF_SPEC,
            r"sys\.(?:meta_)?path",
            r"\bsys[ \t]+(?:as|import)\b",
            r"^[ \t]*(?:from|import)\b.*[^\x00-\x7f]",
        )
    ).encode(),
    re.MULTILINE,
)
_HOOKS = ("meta_path", "path_hooks")
_ADDS = {"append": 0, "insert": 1, "extend": 0}
"""Methods of `sys.path`, with the position of what they add."""
_OWN = ("__name__", "__package__", "__spec__")
_SAME_PATH = ("Path", "PurePath", "str", "fspath", "abspath", "realpath", "resolve", "absolute", "as_posix")
_FILE = "__file__"
_MOST_VALUES = 100
"""So many are put into one expression: a value may contain itself."""


_Node = TypeVar("_Node", bound=ast.expr)


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
    """The first parts of the names of modules, paths of files, folders that are looked into, and the lines
    (1-based) where a module, file or folder is computed, or a function that imports is handed on."""

    names: frozenset[str] = frozenset()
    paths: frozenset[FilePath] = frozenset()
    computed: tuple[int, ...] = ()
    folders: frozenset[FilePath] = frozenset()


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
    found = _Reader(nodes)
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
        found.read(node)
    return Imports(
        frozenset(names | found.names),
        frozenset(found.paths),
        tuple(sorted(found.computed)),
        frozenset(found.folders),
    )


class _Reader:
    """Reads what the expressions of one file import; see `Imports`."""

    def __init__(self, nodes: list[ast.AST]) -> None:
        self.names: set[str] = set()
        self.paths: set[FilePath] = set()
        self.folders: set[FilePath] = set()
        self.computed: set[int] = set()
        self._aliases = {
            alias.asname: alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname
        }
        self._sys = {"sys"} | {
            alias.asname
            for node in nodes
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == "sys" and alias.asname
        }
        self._called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        self._makes = any(_last_name(node) == _OF_SPEC for node in nodes if isinstance(node, ast.expr))
        self._values = _Values(nodes)

    def read(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self._read_call(node)
        elif isinstance(node, ast.Attribute | ast.Name) and id(node) not in self._called:
            if isinstance(node.ctx, ast.Load) and self._function(node) in _LOADERS:
                self.computed.add(node.lineno)  # whoever it is handed to calls it
            if isinstance(node, ast.Attribute) and node.attr in _HOOKS and self._is_sys(node.value):
                self.computed.add(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "sys":
            self.computed |= {node.lineno for alias in node.names if alias.name == "path"}
        elif isinstance(node, ast.AugAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            if any(map(self._is_search_path, targets)):
                self._add_folders(node.value, node.lineno)

    def _function(self, node: ast.expr) -> str:
        name = _last_name(node)
        return self._aliases.get(name, name) if isinstance(node, ast.Name) else name

    def _read_call(self, call: ast.Call) -> None:
        function = self._function(call.func)
        if function in BY_NAME or function == _FIND_SPEC:
            name = _first_part(self._values.put_in(call))
            if name:
                self.names.add(name)
            elif name is None and (function in BY_NAME or self._makes):
                self.computed.add(call.lineno)
        elif function in BY_PATH:
            path = _path(_argument(self._values.put_in(call), *BY_PATH[function]))
            if path is None:
                self.computed.add(call.lineno)
            elif function == "addsitedir":
                self.folders.add(path)
            else:
                self.paths.add(path)
        elif function == "getattr":
            literals = {one.value for one in call.args if isinstance(one, ast.Constant)}
            self.computed |= {call.lineno for one in _LOADERS if one in literals}
        elif (
            function in _ADDS
            and isinstance(call.func, ast.Attribute)
            and self._is_search_path(call.func.value)
        ):
            for value in call.args[_ADDS[function] :]:
                self._add_folders(value, call.lineno)

    def _add_folders(self, value: ast.expr, line: int) -> None:
        """What is added to `sys.path`: a path, or a list of them."""
        for one in self._listed(value):
            path = _path(self._values.put_in(one))
            if path is None:
                self.computed.add(line)
            else:
                self.folders.add(path)

    def _is_search_path(self, node: ast.expr) -> bool:
        """Whether it is `sys.path` or a part of it."""
        if isinstance(node, ast.Subscript):
            node = node.value
        return isinstance(node, ast.Attribute) and node.attr == "path" and self._is_sys(node.value)

    def _is_sys(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._sys

    def _listed(self, node: ast.expr) -> list[ast.expr]:
        """The parts of a list or a sum of lists, without `sys.path` itself."""
        if isinstance(node, ast.List | ast.Tuple):
            return [one for part in node.elts for one in self._listed(part)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [*self._listed(node.left), *self._listed(node.right)]
        if isinstance(node, ast.Starred):
            return self._listed(node.value)
        return [] if self._is_search_path(node) else [node]


class _Values(ast.NodeTransformer):
    """Puts into an expression the values of names that a file binds once, at its outermost level."""

    def __init__(self, nodes: list[ast.AST]) -> None:
        bound = Counter(name for node in nodes for name in _bound(node))
        body = next((node.body for node in nodes if isinstance(node, ast.Module)), [])
        self._values = {
            one.targets[0].id: one.value
            for one in body
            if isinstance(one, ast.Assign) and len(one.targets) == 1 and isinstance(one.targets[0], ast.Name)
            if bound[one.targets[0].id] == 1
        }
        self._left = 0

    def put_in(self, expression: _Node) -> _Node:
        self._left = _MOST_VALUES
        found: _Node = self.visit(copy.deepcopy(expression))
        return found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._values.get(node.id)
        if value is None or self._left <= 0:
            return node
        self._left -= 1
        found: ast.expr = self.visit(copy.deepcopy(value))
        return found


def _bound(node: ast.AST) -> list[str]:
    """Names that a node binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.arg(arg=name) | ast.alias(asname=str(name)) | ast.alias(name=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return [*names, *names]
    return []


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
    return None if start is None else start.partition(".")[0].partition(":")[0]


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
