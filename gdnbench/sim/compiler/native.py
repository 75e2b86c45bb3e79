# SPDX-License-Identifier: Apache-2.0
"""Compiles LLVM IR to machine code for this CPU and caches it on disk.

An entry of `CACHE` is the object files and the translator's record. Its key is a digest of everything that
they depend on. An entry of `HELPERS` is the object file of one helper function, which all kernels share.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding as llvm

from gdnbench.artifact_cache import ArtifactCache
from gdnbench.sim import special_function
from gdnbench.sim.compiler.parallel import map_in_processes
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine import engine_interface, mbarrier
from gdnbench.sim.ptx import isa

# The x86-64 extensions that the engine's code requires.
_NEEDED = ("avx2", "f16c", "fma")

CACHE = ArtifactCache("sim", b"gdnbench-sim-4\n")
HELPERS = ArtifactCache("sim-helpers", b"gdnbench-sim-helper-1\n")


def _files() -> list[Path]:
    """The sources that decide how a PTX text is compiled: this package, the parser, and the tables and
    addresses that compiled code contains."""
    packages = (Path(__file__).parent, Path(isa.__file__).parent)
    modules = (special_function, engine_interface, mbarrier)
    return [
        *(path for package in packages for path in sorted(package.glob("*.py"))),
        *(Path(str(module.__file__)) for module in modules),
    ]


def _sources() -> bytes:
    """The digest of those sources: a change of the engine invalidates old entries."""
    digest = hashlib.sha256()
    for path in _files():
        digest.update(path.read_bytes())
    return digest.digest()


_VERSION = _sources()  # computed when the sources are imported, not when the first kernel is compiled

# LLVM is called by one thread at a time. No process is forked meanwhile: it would wait forever for the lock.
llvm_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=llvm_lock.acquire, after_in_parent=llvm_lock.release, after_in_child=llvm_lock.release
    )


_T = TypeVar("_T")
_R = TypeVar("_R")


class Level(IntEnum):
    """How well LLVM compiles. BASELINE takes 0.4 of the time of OPTIMISED, and its code executes 0.8 as many
    instructions in a second."""

    BASELINE = 0
    OPTIMISED = 1


@dataclass(frozen=True, slots=True)
class Compiled:
    """The object files of a kernel and a JSON record of the translator."""

    objects: tuple[bytes, ...]
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Machine code in memory: `run(state, quantum) -> status`. `engine` owns the memory."""

    run: Callable[[int, int], int]
    engine: Any


@cache
def _host() -> tuple[str, str]:
    """(CPU name, its features) in LLVM's notation."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    missing = [feature for feature in _NEEDED if f"+{feature}" not in features.split(",")]
    if platform.machine() == "x86_64" and missing:
        raise UnsupportedError(
            f"the compiled engine on a CPU without {', '.join(missing)}; engine='interpreter' runs on any"
        )
    return name, features


def has_feature(name: str) -> bool:
    """Whether this CPU has an extension; `name` is LLVM's."""
    return f"+{name}" in _host()[1].split(",")


def _machine(level: Level = Level.OPTIMISED) -> Any:
    """The target machine, with the large code model: code and constants are mapped separately. Among tensors
    of some GB they may be further apart than the 2 GB that code-relative addresses reach. The model costs 7 %
    of the speed."""
    cpu, features = _host()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=cpu, features=features, opt=int(level), reloc="static", codemodel="large"
    )


def cache_key(*texts: str) -> str:
    """A file name derived from everything that a compiled kernel depends on."""
    digest = hashlib.sha256(_VERSION)
    for text in (*texts, *_host(), repr(llvm.llvm_version_info)):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def compile_texts(texts: Sequence[str], level: Level) -> tuple[bytes, ...]:
    """Compile the parts of a kernel to an object file each, at the same time if there is more than one."""
    return tuple(in_processes(lambda text: compile_text(text, level), texts, len(texts)))


def in_processes(function: Callable[[_T], _R], items: Sequence[_T], processes: int) -> list[_R]:
    """`map_in_processes` of a function that compiles."""
    with llvm_lock:
        return map_in_processes(function, items, processes)


_helpers: dict[str, bytes] = {}


def compile_helper(text: str) -> bytes:
    """Compile a helper function, a module of its own, unless this process or the cache has it. Only one
    thread may call it at a time."""
    name = cache_key(text)
    if name not in _helpers:
        found = HELPERS.fetch(name)
        if found is None or len(found[1]) != 1:
            found = {}, [compile_text(text, Level.OPTIMISED)]
            HELPERS.keep(name, *found)
        _helpers[name] = found[1][0]
    return _helpers[name]


def compile_text(text: str, level: Level = Level.OPTIMISED) -> bytes:
    """Compile LLVM IR to an object file. Only one thread may call it at a time."""
    machine = _machine(level)
    module = llvm.parse_assembly(text)
    module.triple = llvm.get_default_triple()
    module.data_layout = str(machine.target_data)
    if level is Level.OPTIMISED:
        options = llvm.create_pipeline_tuning_options(speed_level=0)
        builder = llvm.create_pass_builder(machine, options)
        passes = llvm.create_new_function_pass_manager()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)
    return bytes(machine.emit_object(module))


def load_objects(objects: Sequence[bytes]) -> Loaded:
    """Map the object files of a kernel into this process."""
    with llvm_lock:
        module = llvm.parse_assembly("")
        engine = llvm.create_mcjit_compiler(module, _machine())
        for code in objects:
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address = engine.get_function_address("run")
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
    return Loaded(kind(address), engine)


def read_cached(name: str) -> Compiled | None:
    """The cache entry `name`, or None."""
    found = CACHE.fetch(name)
    if found is None or not found[1]:
        return None
    record, objects = found
    return Compiled(tuple(objects), record)


def write_cached(name: str, compiled: Compiled) -> None:
    """Write the cache entry `name`; errors of the file system are ignored."""
    CACHE.keep(name, compiled.record, compiled.objects)
