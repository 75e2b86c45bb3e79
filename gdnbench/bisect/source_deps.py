# SPDX-License-Identifier: Apache-2.0
"""Finds the files that hold a kernel's code: its own, and those that they import.

Imports are read from the text, see `imports`, so no code runs; an import by a computed name is not seen.
Packages in site-packages, the standard library and this project's packages are left out: their versions, or
all of their code, are part of every question.
"""

from __future__ import annotations

import ast
import importlib.util
import site
import sys
import sysconfig
import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

from gdnbench.bisect.cache_key import SOURCE_SUFFIXES, files_below
from gdnbench.bisect.imports import FilePath, read_imports

OWN = ("gdnbench", "gdnbench_kernels")


def with_imported(start: Path, folder: Path, without: Container[str] = ()) -> list[Path]:
    """`start`, a file or the folder of a package, and all that it imports, directly or not: files and
    folders of packages. Modules are looked for in `folder`, in what the files add to `sys.path`, beside a
    file, then where this process looks. Files beside a file that it names in a string count too. Modules
    whose names are in `without` do not."""
    folders = [folder]
    while True:
        found, named = _reached(start, folders, without)
        named = [path for path in named if not _is_installed(path)]
        new = [path for path in named if path.is_dir() and path not in folders]
        if not new:
            return [*found, *(path for path in named if path.is_file() and path not in found)]
        folders += new


def _reached(start: Path, folders: Sequence[Path], without: Container[str]) -> tuple[list[Path], list[Path]]:
    """What `start` imports with modules in `folders`; the folders and archives that it adds to `sys.path`."""
    found: dict[Path, None] = {}
    named: dict[Path, None] = {}
    waiting = [start]
    while waiting:
        place = waiting.pop()
        if place in found:
            continue
        found[place] = None
        files = [place] if place.is_file() else sorted(files_below(place))
        for file in files:
            if file.suffix != ".py":
                continue
            text = file.read_bytes()
            beside = [*folders, file.parent] if place.is_file() else folders
            imports = read_imports(text)
            names = sorted(name for name in imports.names if name not in without)
            waiting += (path for name in names for path in _located(name, beside))
            waiting += _named_paths(imports.paths, file, folders[0])
            named |= dict.fromkeys(_named_paths(imports.folders, file, folders[0]))
            if place.is_file():
                waiting += _files(file.parent, _strings(text))
    return list(found), list(named)


def _located(name: str, folders: Sequence[Path]) -> list[Path]:
    """Where the module or package of that first name may come from: each of `folders` that has it, else where
    this process would import it from. Nothing of what is installed."""
    if name in sys.stdlib_module_names or name in OWN:
        return []
    found = [path for folder in folders for path in (folder / name, folder / f"{name}.py") if _module(path)]
    if found:
        return found
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: of a module that was not imported, such as __main__
        return []
    if spec is None:
        return []
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    paths = [Path(place).resolve() for place in places]
    return [path for path in paths if not _is_installed(path)]


def _named_paths(paths: Iterable[FilePath], file: Path, folder: Path) -> Iterator[Path]:
    """What is there of the files and folders that `file` names."""
    for one in sorted(paths, key=str):
        path = (file.parent if one.beside else folder) / one.path
        if path.exists():
            yield path.resolve()


def _module(path: Path) -> bool:
    return path.is_file() or (path.suffix == "" and path.is_dir() and any(path.glob("**/*.py")))


def _strings(text: bytes) -> set[str]:
    """Strings in a file that may name a module or a file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the text, such as an escape that is none
            nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # then it cannot be imported
        return set()
    found = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in found if 0 < len(text) < 256 and text.isprintable()}


def _files(folder: Path, strings: set[str]) -> Iterator[Path]:
    """Sources that strings name by a path from `folder`, or modules there by their names; of
    `module:function`, as a kernel's steps are named, the module."""
    for text in sorted({text.partition(":")[0] for text in strings} - {""}):
        name = text if text.endswith(SOURCE_SUFFIXES) else f"{text.replace('.', '/')}.py"
        if (folder / name).is_file():
            yield folder / name


def _is_installed(path: Path) -> bool:
    return any(path.is_relative_to(there) for there in _installed())


def _installed() -> list[Path]:
    """Folders whose packages count by their versions: this Python's, and those that pip installed into."""
    named = [sysconfig.get_paths()[key] for key in ("purelib", "platlib", "stdlib", "platstdlib")]
    named += [place for place in sys.path if place and any(Path(place).glob("*.dist-info"))]
    return [Path(place).resolve() for place in (*named, *site.getsitepackages(), site.getusersitepackages())]
