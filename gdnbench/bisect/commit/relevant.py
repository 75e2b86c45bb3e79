"""Computes which trees of a revision a kernel's verdict depends on, without checking it out.

They are the kernel's package, the packages and modules of the repository that it imports, and those that they
import. Imports are read from the text of the files, so an import that never runs counts too, and an import by
a computed name does not. If one of them is or has a symbolic link, the whole revision counts.
"""

from __future__ import annotations

import ast
import posixpath
import re
import tomllib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from gdnbench.bisect.commit.repository import LINK, Repository

_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([\w., \t]+))", re.MULTILINE)
OWN = "gdnbench"
"""A repository that has a package of this name is replayed by it, and not by the one that bisects."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the packages of a revision are: folders that imports look into, and packages under other
    names."""

    folders: tuple[str, ...]
    renamed: dict[str, str] = field(default_factory=dict)


class Relevant:
    """Everything that verdicts on one kernel depend on, in the revisions of one repository."""

    def __init__(self, repository: Repository, kernel: str, path: str, also: tuple[str, ...] = ()) -> None:
        self._repository = repository
        self._place = kernel.rpartition(":")[0]
        self._path = path
        self._also = also
        self._imports: dict[str, frozenset[str]] = {}  # by hash of a file

    def import_roots(self, revision: str) -> Roots:
        """The requested folder, and the folders where its pyproject.toml says that setuptools finds
        packages."""
        own = self._path
        if self._repository.in_submodule(revision, own):
            return Roots((own,))
        found = self._repository.tree(revision, posixpath.join(own, "pyproject.toml"))
        named: dict[str, str] = {}
        if found is not None:
            try:
                project = tomllib.loads(self._repository.blobs([found])[0].decode())
                named = dict(project["tool"]["setuptools"]["package-dir"])
            except (ValueError, KeyError, TypeError):
                named = {}
        folders = [own]
        if named.get(""):
            folders.append(posixpath.normpath(posixpath.join(own, named[""])))
        renamed = {
            name: posixpath.normpath(posixpath.join(own, folder))
            for name, folder in named.items()
            if name and "." not in name and folder != name
        }
        return Roots(tuple(folders), renamed)

    def has_own_gdnbench(self, revision: str) -> bool:
        """Whether the revision has a package gdnbench of its own."""
        return any(
            self._repository.tree(revision, posixpath.join(folder, OWN, "__init__.py")) is not None
            for folder in self.import_roots(revision).folders
        )

    def tree_hashes(self, revision: str) -> dict[str, str] | None:
        """Hashes of all relevant trees by path. None if the kernel's package is not in this revision. In a
        submodule everything counts, and whether the package is there shows when it is checked out."""
        if self._repository.in_submodule(revision, self._path):
            return {"": self._repository.tree(revision) or revision}
        roots = self.import_roots(revision)
        there = self._importable(revision, roots)
        start = self._start(revision, roots, there)
        if start is None:
            return None
        found: dict[str, str] = {}
        while start:
            name = start.pop()
            if name in found or name not in there:
                continue
            found[name] = there[name][1]
            imported = self._imported(*there[name])
            if imported is None:
                return {"": self._repository.tree(revision) or revision}
            start |= imported - found.keys()
        own = posixpath.join(self._path, "pyproject.toml")
        for path in (*self._also, own):
            if (identity := self._repository.tree(revision, path)) is not None:
                found[path] = identity
        return found

    def _start(self, revision: str, roots: Roots, there: dict[str, tuple[str, str]]) -> set[str] | None:
        """The names to start from; for a kernel in a file of the repository, the file and its imports."""
        if self._place.endswith(".py"):
            if Path(self._place).is_absolute():
                return imported_names(Path(self._place).read_bytes()) & there.keys()
            path = posixpath.normpath(posixpath.join(self._path, self._place))
            identity = self._repository.tree(revision, path)
            if identity is None:
                return None
            same = identity == self._repository.target(revision, path)
            there[path] = ("blob" if same else LINK, identity)
            return {path}
        names = {OWN, "gdnbench_kernels"} & there.keys() if self.has_own_gdnbench(revision) else set()
        if self._place:
            package = self._place.partition(".")[0]
            return names | {package} if package in there else None
        return names or None

    def _importable(self, revision: str, roots: Roots) -> dict[str, tuple[str, str]]:
        """Kind and hash of every package and module that an import can find, by name."""
        found: dict[str, tuple[str, str]] = {}
        for folder in roots.folders:
            tree = self._repository.target(revision, "" if folder in ("", ".") else folder)
            for name, (kind, identity) in (self._repository.names(tree) if tree else {}).items():
                if kind in ("blob", LINK) and name.endswith(".py"):
                    found.setdefault(name.removesuffix(".py"), (kind, identity))
                elif kind != "blob" and name.isidentifier():
                    found.setdefault(name, (kind, identity))
        for name, folder in roots.renamed.items():
            if (tree := self._repository.target(revision, folder)) is not None:
                found[name] = ("tree", tree)
        return found

    def _imported(self, kind: str, identity: str) -> set[str] | None:
        """The first parts of all names imported in a file, or below a folder. None if a link leads
        elsewhere."""
        if kind == LINK:
            return None
        if kind == "commit":  # a submodule: its files are not in this repository
            return set()
        files = [identity]
        if kind == "tree":
            listed = self._repository.files(identity)
            if any(one == LINK for one, _ in listed.values()):
                return None
            files = [one for path, (_, one) in listed.items() if path.endswith((".py", ".pyi"))]
        new = [one for one in dict.fromkeys(files) if one not in self._imports]
        for one, text in zip(new, self._repository.blobs(new), strict=True):
            self._imports[one] = frozenset(imported_names(text))
        return set().union(*(self._imports[one] for one in files))


def imported_names(text: bytes) -> set[str]:
    """The first parts of the names that a file imports. Import lines inside strings count too, since the
    strings may be run. If the file does not parse, import statements that begin a line count."""
    found = set()
    for source, names in _IMPORT.findall(text):
        parts: Iterable[bytes] = [source] if source else names.split(b",")
        found |= {
            part.split()[0].partition(b".")[0].decode(errors="replace") for part in parts if part.split()
        }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the text, such as an escape that is none
            nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def digest(trees: dict[str, str]) -> str:
    """BLAKE3 of names and hashes."""
    return blake3(repr(sorted(trees.items())).encode()).hexdigest()
