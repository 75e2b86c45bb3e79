"""Compiled kernels: their sources, their cache and their calls.

A `Source` names a kernel and its options; `program` compiles it, or finds it in memory or on disk. A
`Program` is called with the kernel's tensors and numbers, without the stream. The `launching` block selects
what runs it; the default is CUDA, on torch's current device and stream.

    target = "gdnbench_kernels.gdn_prefill.sources:build_output"
    source = Source.create("gdn_prefill.chunk_output", target, heads=2, value_heads=4)
    program(source)(q, k, ...)

Importing this module needs neither CuTe DSL nor a GPU. Compiling needs CuTe DSL and no GPU.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from gdnbench.artifact_cache import ArtifactCache
from gdnbench_kernels.artifacts import ARCHS, Artifacts, Parameter
from gdnbench_kernels.source import Source

CACHE = ArtifactCache("programs", b"gdnbench-program-1\n")


class ArchError(ValueError):
    """A target that no kernel is compiled for; the message names the supported ones."""


class LoadError(ValueError):
    """Files that `export` did not write; the message names one."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Program(Artifacts):
    """A compiled kernel that can be called."""

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


def is_redirected() -> bool:
    """Whether a `launching` block is active: kernels do not run on CUDA but, for one, on the simulator."""
    return _launcher.get() is not None


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
    return _kept(key) or _made_once(source, arch, key)


def _kept(key: str) -> Program | None:
    found = CACHE.fetch(key)
    if found is None:
        return None
    record, contents = found
    return _of_record(record, dict(zip(CONTENTS, contents, strict=True)))


def _made_once(source: Source, arch: str, key: str) -> Program:
    """Compile the source, unless another process does: then wait for it."""
    with CACHE.making(key):
        return _kept(key) or _compiled(source, arch, key)


def _compiled(source: Source, arch: str, key: str) -> Program:
    from gdnbench_kernels.cutlass_compiler import compile_source

    imported = {module: path for module, path in source.files().items() if module in sys.modules}
    compiled = compile_source(source, arch, key)
    made = Program(**{field.name: getattr(compiled, field.name) for field in fields(compiled)})
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
