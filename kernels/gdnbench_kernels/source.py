# SPDX-License-Identifier: Apache-2.0
"""Kernels to compile: a function that builds one, its options, and the files that it comes from."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from gdnbench import artifact_cache

DSL = "nvidia-cutlass-dsl"

Option = int | float | str | bool | None

LONGEST_SYMBOL, DIGEST_DIGITS = 200, 16
"""Files add a suffix, and a dot and the process id while they are written; names have at most 255 bytes."""


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel to compile.

    `target`, "package.module:function", is called with `options`. It returns the host function, or an object
    with a `@cute.jit` `__call__`, and example arguments, including a fake stream. Its module is imported only
    to compile.
    """

    name: str  # "gdn_prefill.chunk_uw"
    target: str
    options: tuple[tuple[str, Option], ...] = ()

    @staticmethod
    def create(name: str, target: str, **options: Option) -> Source:
        return Source(name, target, tuple(sorted(options.items())))

    @property
    def symbol(self) -> str:
        """Prefix of exported symbols and files: the name and the options, as an identifier. If it is too long
        for a file name, it is truncated and ends with a digest of all of it."""
        parts = [self.name, *(f"{name}_{value}" for name, value in self.options)]
        whole = re.sub(r"\W+", "_", "_".join(parts))
        if len(whole) <= LONGEST_SYMBOL:
            return whole
        digest = hashlib.sha256(whole.encode()).hexdigest()[:DIGEST_DIGITS]
        return f"{whole[: LONGEST_SYMBOL - DIGEST_DIGITS - 1]}_{digest}"

    def build(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The compiler's input; imports CuTe DSL."""
        module, _, function = self.target.partition(":")
        host, arguments = getattr(importlib.import_module(module), function)(**dict(self.options))
        return host, tuple(arguments)

    def files(self) -> dict[str, Path]:
        """The Python files that decide what is compiled, by module: the target's file, and all files that it
        imports, directly or indirectly, from its own top-level package or from this one."""
        first = self.target.partition(":")[0]
        packages = {first.partition(".")[0], __name__.partition(".")[0]}
        found: dict[str, Path] = {}
        waiting = [first]
        while waiting:
            module = waiting.pop()
            spec = None if module in found else _spec(module)
            if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
                continue
            found[module] = Path(spec.origin)
            waiting += _imports(spec, packages)
            if "." in module:
                waiting.append(module.rpartition(".")[0])  # a package's own file runs first
        return dict(sorted(found.items()))

    def key(self, arch: str) -> str:
        """A digest of everything that the compiled kernel depends on: source text, DSL, target, options, the
        compiler's environment variables, this host, and the paths of the files (line numbers name them)."""
        digest = hashlib.sha256()
        settings = sorted((name, value) for name, value in os.environ.items() if name.startswith("CUTE_DSL_"))
        host = (platform.system(), platform.machine())
        for part in (
            self.name,
            self.target,
            self.options,
            arch,
            dsl_version(),
            _code_generators(),
            settings,
            host,
        ):
            digest.update(repr(part).encode() + b"\0")
        for module, path in {**self.files(), **_own_files()}.items():
            digest.update(f"{module}\0{path}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()


def dsl_version() -> str:
    """The version of the installed CuTe DSL. Raises ImportError, which says what to install."""
    try:
        return metadata.version(DSL)
    except metadata.PackageNotFoundError:
        raise ImportError(f"CuTe DSL is not installed: pip install {DSL}") from None


def _code_generators() -> list[tuple[str, str]]:
    """The DSL's installed libraries. Those for CUDA 12 and CUDA 13 have different assemblers, which allocate
    different registers."""
    found = []
    for name in (f"{DSL}-libs-{part}" for part in ("base", "core", "cu12", "cu13")):
        with suppress(metadata.PackageNotFoundError):
            found.append((name, metadata.version(name)))
    return found


def _own_files() -> dict[str, Path]:
    """The files that decide how sources are compiled."""
    own = {
        name: Path(__file__).with_name(f"{name}.py")
        for name in ("artifacts", "compiling", "cutlass_compiler")
    }
    return {"source": Path(__file__), **own, "cache": Path(artifact_cache.__file__)}


def _spec(module: str) -> Any:
    """The spec of a module, or None. Imports its parent packages, not the module itself."""
    try:
        return importlib.util.find_spec(module)
    except (ModuleNotFoundError, ValueError):  # a missing package; a module without a spec
        return None


def _imports(spec: Any, packages: set[str]) -> Iterator[str]:
    """Modules of `packages` that a file imports anywhere."""
    package = spec.name if spec.submodule_search_locations is not None else spec.parent
    for node in ast.walk(ast.parse(Path(spec.origin).read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(relative, package) if node.level else relative
            names = [base]
            # Only a package has submodules; looking for one would import the module.
            if base.partition(".")[0] in packages and _is_package(base):
                names += [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] in packages)


def _is_package(module: str) -> bool:
    spec = _spec(module)
    return spec is not None and spec.submodule_search_locations is not None
