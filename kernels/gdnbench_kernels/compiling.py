"""Compiled kernels: their sources, their cache and their calls.

A `Source` names a kernel and its options; `program` compiles it, or finds it in memory or on disk. A
`Program` is called with the kernel's tensors and numbers, without the stream. The `launching` block selects
what runs it; the default is CUDA, on torch's current device and stream.

    target = "gdnbench_kernels.gdn_prefill.sources:build_output"
    source = Source.create("gdn_prefill.chunk_output", target, heads=2, value_heads=4)
    program(source)(q, k, ...)

Importing this module needs neither CuTe DSL nor a GPU. Compiling needs CuTe DSL and no GPU.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import json
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from gdnbench import artifact_cache
from gdnbench.artifact_cache import ArtifactCache

DSL = "nvidia-cutlass-dsl"
CACHE = ArtifactCache("programs", b"gdnbench-program-1\n")

ARCHS: dict[str, tuple[tuple[int, int], ...]] = {
    "sm_90a": ((9, 0),),
    "sm_100a": ((10, 0),),
    "sm_100f": ((10, 0), (10, 3)),
    "sm_103a": ((10, 3),),
}
"""Targets and the compute capabilities that run their code: one for suffix "a", a family for "f"."""

STREAM = "!cuda.stream"

Option = int | float | str | bool | None


class ArchError(ValueError):
    """A target that no kernel is compiled for; the message names the supported ones."""


class ArgumentError(ValueError):
    """Arguments that a compiled kernel does not take; the message names the argument and what the kernel
    takes."""


LONGEST_SYMBOL, DIGEST_DIGITS = 200, 16
"""Files add a suffix, and a dot and the process id while they are written; names have at most 255 bytes."""


class LoadError(ValueError):
    """Files that `export` did not write; the message names one."""


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


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel's host function: its type in the compiler's IR, or None if it was compiled
    in."""

    name: str
    type: str | None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Program:
    """A complete compiled kernel: it can be loaded, simulated or linked without compiling anything."""

    name: str
    arch: str
    key: str
    symbol: str  # prefix of the host object's symbols
    function: str  # the compiler's name of the host function
    parameters: tuple[Parameter, ...]  # in order, including the stream
    ptx: str
    header: str  # C, declares what the host object defines
    host_object: bytes  # ELF, with the cubin in it
    cubin: bytes
    compile_seconds: float

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run with the active launcher. The arguments are in the kernel's order, without the stream."""
        (_launcher.get() or _cuda)(self, args, kwargs)

    def prepared(self, *args: Any, **kwargs: Any) -> Callable[[], object]:
        """A function that runs this program on these arguments; if that saves time, it checks and packs them
        only once."""
        if _launcher.get() is not None:
            return partial(self, *args, **kwargs)
        from gdnbench_kernels.cuda_launch import prepared

        return prepared(self, args, kwargs)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by parameter name, without streams; compiled-in parameters are None."""
        names = [parameter.name for parameter in self.parameters if parameter.type != STREAM]
        required = [parameter.name for parameter in self.parameters if parameter.type not in (STREAM, None)]
        given = dict(zip(names, args, strict=False))
        twice = [name for name in kwargs if name in given]
        unknown = [name for name in kwargs if name not in names]
        missing = [name for name in required if name not in {*given, *kwargs}]
        if len(args) > len(names) or twice or unknown or missing:
            what = f"{len(args)} positional arguments" + (f" and {', '.join(kwargs)}" if kwargs else "")
            raise ArgumentError(f"{self.name} takes {', '.join(names)}; given were {what}")
        given.update(kwargs)
        for parameter in self.parameters:
            if parameter.type is None and given.setdefault(parameter.name, None) is not None:
                raise ArgumentError(f"{self.name} was compiled without {parameter.name}; it is to be None")
        return {name: given[name] for name in names}


Launcher = Callable[[Program, Sequence[Any], Mapping[str, Any]], object]
"""Runs a program on the caller's arguments."""

_launcher: ContextVar[Launcher | None] = ContextVar("gdnbench_kernels_launcher", default=None)


@contextmanager
def launching(launcher: Launcher) -> Iterator[None]:
    """Inside this block calls of programs go to `launcher`."""
    token = _launcher.set(launcher)
    try:
        yield
    finally:
        _launcher.reset(token)


def _cuda(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    from gdnbench_kernels.cuda_launch import launch

    launch(program, args, kwargs)


_STARTED = time.time_ns()
"""Import time of this module, in ns: kernels are imported after it."""

_programs: dict[tuple[Source, str], Program] = {}
_lock = threading.Lock()


def program(source: Source, arch: str = "sm_100a") -> Program:
    """`source` compiled for `arch`: from this process, else from disk, else compiled now and cached.

    Raises ArchError for an unsupported target and ImportError without CuTe DSL; errors of the compiler pass
    through.
    """
    if arch not in ARCHS:
        raise ArchError(f"arch {arch!r}; there are {', '.join(ARCHS)}")
    with _lock:
        found = _programs.get((source, arch))
        if found is None:
            found = _programs[source, arch] = _from_disk(source, arch)
        return found


def _from_disk(source: Source, arch: str) -> Program:
    key = source.key(arch)
    kept = CACHE.fetch(key)
    if kept is not None:
        record, contents = kept
        return _of_record(record, dict(zip(CONTENTS, contents, strict=True)))
    from gdnbench_kernels.cutlass_compiler import compile_source

    imported = {module: path for module, path in source.files().items() if module in sys.modules}
    made = compile_source(source, arch, key)
    # If this process imported a file before it was edited, it compiled the old text.
    edited = any(path.stat().st_mtime_ns > _STARTED for path in imported.values())
    if not edited and source.key(arch) == key:
        CACHE.keep(key, _record(made), list(_contents(made).values()))
    return made


CONTENTS = ("o", "h", "cubin", "ptx")
"""The files that `export` writes besides the record, by name."""


def export(made: Program, folder: Path) -> Path:
    """Write a program as files to link or to `load`, named after the program's symbol. Returns the path of
    the record, which is written last."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = _contents(made)
    digests = {suffix: hashlib.sha256(content).hexdigest() for suffix, content in contents.items()}
    record = json.dumps(_record(made) | {"sha256": digests}, indent=2) + "\n"
    for suffix, content in {**contents, "json": record.encode()}.items():
        _write_whole(folder / f"{made.symbol}.{suffix}", content)
    return folder / f"{made.symbol}.json"


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically. If the disk is full, the old file stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_program(path: Path) -> Program:
    """The program whose record `export` wrote to `path`. Raises LoadError unless all its files are
    unchanged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        digests = record.pop("sha256")
        contents = {suffix: path.with_suffix(f".{suffix}").read_bytes() for suffix in CONTENTS}
        changed = [name for name in CONTENTS if hashlib.sha256(contents[name]).hexdigest() != digests[name]]
        if changed:
            raise LoadError(f"{path}: {path.stem}.{changed[0]} is not what was exported with it")
        return _of_record(record, contents)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise LoadError(f"{path} is no record of an exported program: {error!r}") from error


def _contents(made: Program) -> dict[str, bytes]:
    contents = (made.host_object, made.header.encode(), made.cubin, made.ptx.encode())
    return dict(zip(CONTENTS, contents, strict=True))


def _record(made: Program) -> dict[str, Any]:
    fields = ("name", "arch", "key", "symbol", "function", "compile_seconds")
    parameters = [(parameter.name, parameter.type) for parameter in made.parameters]
    return {name: getattr(made, name) for name in fields} | {"parameters": parameters}


def _of_record(record: Mapping[str, Any], contents: Mapping[str, bytes]) -> Program:
    return Program(
        **{name: value for name, value in record.items() if name != "parameters"},
        parameters=tuple(Parameter(name, kind) for name, kind in record["parameters"]),
        host_object=contents["o"],
        header=contents["h"].decode(),
        cubin=contents["cubin"],
        ptx=contents["ptx"].decode(),
    )


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
    compiler = Path(__file__).with_name("cutlass_compiler.py")
    return {"compiling": Path(__file__), "cutlass_compiler": compiler, "cache": Path(artifact_cache.__file__)}


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
