"""Computes which trees of a revision a kernel's verdict depends on, without checking it out.

They are the kernel's package, the packages, modules and files of the repository that it imports, and those
that they import. Imports are read from the text of the files, see `imports`, so an import that never runs
counts too, and an import by a computed name does not. If one of them is or has a symbolic link, the whole
revision counts.
"""

from __future__ import annotations

import posixpath
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from gdnbench.bisect.commit.repository import LINK, Repository
from gdnbench.bisect.imports import FilePath, Imports, read_imports

OWN = "gdnbench"
"""A repository that has a package of this name is replayed by it, and not by the one that bisects."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the packages of a revision are: folders that imports look into, and packages under other
    names."""

    folders: tuple[str, ...]
    renamed: dict[str, str] = field(default_factory=dict)


class _Importable(NamedTuple):
    """A module, package or file of a revision: the kind and hash of its tree or blob, and its path."""

    kind: str
    identity: str
    path: str


class _Imported(NamedTuple):
    """First parts of modules' names, and paths of files from the folder that imports start from."""

    names: set[str]
    paths: set[str]


class Relevant:
    """Everything that verdicts on one kernel depend on, in the revisions of one repository. `computed` has
    `file:line` of the imports by a computed name in the revisions so far."""

    def __init__(self, repository: Repository, kernel: str, path: str, also: tuple[str, ...] = ()) -> None:
        self._repository = repository
        self._place = kernel.rpartition(":")[0]
        self._path = path
        self._also = also
        self._imports: dict[str, Imports] = {}  # by hash of a file
        self.computed: dict[str, None] = {}

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
            found[name] = there[name].identity
            imported = self._imported(there[name])
            if imported is None:
                return {"": self._repository.tree(revision) or revision}
            start |= imported.names | self._add_files(revision, there, imported.paths)
            start -= found.keys()
        own = posixpath.join(self._path, "pyproject.toml")
        for path in (*self._also, own):
            if (identity := self._repository.tree(revision, path)) is not None:
                found[path] = identity
        return found

    def _start(self, revision: str, roots: Roots, there: dict[str, _Importable]) -> set[str] | None:
        """The names to start from; for a kernel in a file of the repository, the file and its imports."""
        if self._place.endswith(".py"):
            if Path(self._place).is_absolute():
                imports = read_imports(Path(self._place).read_bytes())
                self._add_computed(self._place, imports)
                paths = {one.path for one in imports.paths if not one.beside}
                return set(imports.names & there.keys()) | self._add_files(revision, there, paths)
            path = posixpath.normpath(posixpath.join(self._path, self._place))
            identity = self._repository.tree(revision, path)
            if identity is None:
                return None
            same = identity == self._repository.target(revision, path)
            there[path] = _Importable("blob" if same else LINK, identity, path)
            return {path}
        names = {OWN, "gdnbench_kernels"} & there.keys() if self.has_own_gdnbench(revision) else set()
        if self._place:
            package = self._place.partition(".")[0]
            return names | {package} if package in there else None
        return names or None

    def _importable(self, revision: str, roots: Roots) -> dict[str, _Importable]:
        """Every package and module that an import can find, by name."""
        found: dict[str, _Importable] = {}
        for folder in roots.folders:
            tree = self._repository.target(revision, "" if folder in ("", ".") else folder)
            for name, (kind, identity) in (self._repository.names(tree) if tree else {}).items():
                one = _Importable(kind, identity, posixpath.normpath(posixpath.join(folder, name)))
                if kind in ("blob", LINK) and name.endswith(".py"):
                    found.setdefault(name.removesuffix(".py"), one)
                elif kind != "blob" and name.isidentifier():
                    found.setdefault(name, one)
        for name, folder in roots.renamed.items():
            if (tree := self._repository.target(revision, folder)) is not None:
                found[name] = _Importable("tree", tree, folder)
        return found

    def _add_files(self, revision: str, there: dict[str, _Importable], paths: set[str]) -> set[str]:
        """Those of `paths`, from the folder that imports start from, that are files of the revision; adds
        them to `there`."""
        found = set()
        for path in paths:
            inside = posixpath.normpath(posixpath.join(self._path, path))
            identity = None if inside.startswith(("/", "..")) else self._repository.tree(revision, inside)
            if identity is not None and inside.endswith(".py"):
                same = identity == self._repository.target(revision, inside)
                there[inside] = _Importable("blob" if same else LINK, identity, inside)
                found.add(inside)
        return found

    def _imported(self, place: _Importable) -> _Imported | None:
        """What is imported in a file, or below a folder. None if a link leads elsewhere."""
        if place.kind == LINK:
            return None
        if place.kind == "commit":  # a submodule: its files are not in this repository
            return _Imported(set(), set())
        files = {place.path: place.identity}
        if place.kind == "tree":
            listed = self._repository.files(place.identity)
            if any(one == LINK for one, _ in listed.values()):
                return None
            files = {
                posixpath.join(place.path, path): one
                for path, (_, one) in listed.items()
                if path.endswith((".py", ".pyi"))
            }
        new = [one for one in dict.fromkeys(files.values()) if one not in self._imports]
        for one, text in zip(new, self._repository.blobs(new), strict=True):
            self._imports[one] = read_imports(text)
        found = _Imported(set(), set())
        for path, identity in files.items():
            imports = self._imports[identity]
            self._add_computed(path, imports)
            found.names.update(imports.names)
            found.paths.update(_from_start(one, path, self._path) for one in imports.paths)
        return found

    def _add_computed(self, path: str, imports: Imports) -> None:
        self.computed.update(dict.fromkeys(f"{path}:{line}" for line in imports.computed))


def _from_start(path: FilePath, file: str, start: str) -> str:
    """A path that `file` of the repository names, from the folder `start` that imports start from."""
    if not path.beside:
        return path.path
    return posixpath.relpath(posixpath.join(posixpath.dirname(file), path.path), start or ".")


def digest(trees: dict[str, str]) -> str:
    """BLAKE3 of names and hashes."""
    return blake3(repr(sorted(trees.items())).encode()).hexdigest()
