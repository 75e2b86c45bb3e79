# SPDX-License-Identifier: Apache-2.0
"""Computes which trees of a revision a kernel's verdict depends on, without checking it out.

They are the kernel's package, the packages, modules and files of the repository that it imports, and those
that they import; of several with one name all count, whichever Python takes. Imports are read from the text
of the files, see `imports`, so an import that never runs counts too, and one by a computed name does not. If
one of them is or has a symbolic link, the whole revision counts.
"""

from __future__ import annotations

import posixpath
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from gdnbench.bisect.cache_key import files_below
from gdnbench.bisect.commit.repository import LINK, Repository
from gdnbench.bisect.imports import FilePath, Imports, read_imports
from gdnbench.bisect.source_deps import with_imported

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


@dataclass(frozen=True, slots=True)
class _There:
    """What one revision has to import, by a module's first part, or by "/" and a path from the root of the
    repository; and the folders that were looked into."""

    named: dict[str, list[_Importable]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def add(self, name: str, one: _Importable) -> None:
        self.named.setdefault(name, []).append(one)


_BINARY = (".so", ".pyd", ".pyc")
_STARTUP = ("sitecustomize", "usercustomize")
"""Modules that Python imports when it starts."""


class _Imported(NamedTuple):
    """First parts of modules' names, and paths from the folder that imports start from: of files that are
    loaded, and of folders that modules are looked for in."""

    names: set[str]
    paths: set[str]
    folders: set[str]


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
        wanted = start | set(_STARTUP)
        while new := [one for name in wanted for one in there.named.get(name, ()) if one.path not in found]:
            for one in new:
                found[one.path] = one.identity
                imported = self._imported(one)
                if imported is None:
                    return {"": self._repository.tree(revision) or revision}
                wanted |= imported.names | self._add_files(revision, there, imported.paths)
                wanted |= self._add_folders(revision, there, imported.folders)
        own = posixpath.join(self._path, "pyproject.toml")
        for path in (*self._also, own):
            if (identity := self._repository.tree(revision, path)) is not None:
                found[path] = identity
        return found

    def _start(self, revision: str, roots: Roots, there: _There) -> set[str] | None:
        """The names to start from; for a kernel in a file of the repository, the file and its imports."""
        if self._place.endswith(".py"):
            if Path(self._place).is_absolute():
                return self._imported_outside(revision, there)
            path = posixpath.normpath(posixpath.join(self._path, self._place))
            identity = self._repository.tree(revision, path)
            if identity is None:
                return None
            return self._add_files(revision, there, {self._place}) or None
        names = {OWN, "gdnbench_kernels"} & there.named.keys() if self.has_own_gdnbench(revision) else set()
        if self._place:
            package = self._place.partition(".")[0]
            return names | {package} if package in there.named else None
        return names or None

    def outside(self, revision: str) -> list[Path]:
        """The files and folders outside the repository that a kernel's verdict depends on: its file, if that
        is not the repository's, and what that imports and the revision does not have."""
        if not Path(self._place).is_absolute():
            return []
        named = self._importable(revision, self.import_roots(revision)).named
        return with_imported(Path(self._place), Path(self._place).parent, named)

    def _imported_outside(self, revision: str, there: _There) -> set[str]:
        """What the files outside the repository import of it."""
        start = set[str]()
        for place in self.outside(revision):
            for file in [place] if place.is_file() else files_below(place):
                text = file.read_bytes() if file.suffix == ".py" else b""
                imports = read_imports(text)
                self._add_computed(str(file), imports)
                paths, folders = (
                    {one.path for one in found if not one.beside}
                    for found in (imports.paths, imports.folders)
                )
                start |= set(imports.names) | self._add_files(revision, there, paths)
                start |= self._add_folders(revision, there, folders)
        return start

    def _importable(self, revision: str, roots: Roots) -> _There:
        """Every package and module that an import can find, by name."""
        found = _There()
        for folder in roots.folders:
            self._add_modules(revision, found, folder)
        for name, folder in roots.renamed.items():
            if (tree := self._repository.target(revision, folder)) is not None:
                found.add(name, _Importable("tree", tree, folder))
        return found

    def _add_modules(self, revision: str, there: _There, folder: str) -> None:
        """Adds the modules and packages in a folder."""
        there.folders.add(folder)
        tree = self._repository.target(revision, "" if folder in ("", ".") else folder)
        for entry, (kind, identity) in (self._repository.names(tree) if tree else {}).items():
            name, _, suffix = entry.partition(".")
            module = suffix == "py" or entry.endswith(_BINARY)
            if name.isidentifier() and (module if kind == "blob" else module or not suffix):
                there.add(
                    name, _Importable(kind, identity, posixpath.normpath(posixpath.join(folder, entry)))
                )

    def _add_files(self, revision: str, there: _There, paths: set[str]) -> set[str]:
        """Adds those of `paths`, from the folder that imports start from, that the revision has, and returns
        their names in `there`."""
        found = set()
        for inside in filter(None, map(self._inside, paths)):
            identity = self._repository.tree(revision, inside)
            if identity is not None:
                kind = "tree" if self._repository.names(identity) else "blob"
                same = identity == self._repository.target(revision, inside)
                there.add(f"/{inside}", _Importable(kind if same else LINK, identity, inside))
                found.add(f"/{inside}")
        return found

    def _add_folders(self, revision: str, there: _There, paths: set[str]) -> set[str]:
        """Adds what imports find in the folders at `paths`; those that are files, such as archives, as
        `_add_files`."""
        files = set()
        for path in paths:
            inside = self._inside(path)
            if inside is None or inside in there.folders:
                continue
            identity = self._repository.target(revision, inside)
            if identity is not None and not self._repository.names(identity):
                files.add(path)
            else:
                self._add_modules(revision, there, inside)
        return self._add_files(revision, there, files)

    def _inside(self, path: str) -> str | None:
        """A path from the folder that imports start from as one from the root of the repository."""
        inside = posixpath.normpath(posixpath.join(self._path, path))
        return None if inside.startswith(("/", "../")) or inside == ".." else inside

    def _imported(self, place: _Importable) -> _Imported | None:
        """What is imported in a file, or below a folder. None if a link leads elsewhere."""
        if place.kind == LINK:
            return None
        if place.kind == "commit":  # a submodule: its files are not in this repository
            return _Imported(set(), set(), set())
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
            self._imports[one] = Imports() if b"\0" in text else read_imports(text)
        found = _Imported(set(), set(), set())
        for path, identity in files.items():
            imports = self._imports[identity]
            self._add_computed(path, imports)
            found.names.update(imports.names)
            found.paths.update(_from_start(one, path, self._path) for one in imports.paths)
            found.folders.update(_from_start(one, path, self._path) for one in imports.folders)
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
