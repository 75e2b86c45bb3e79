"""LLVM IR -> machine code for this CPU, kept on disk between processes.

A cache entry is the object file with what the translation decided beside it, under the digest of all that it
depends on. One that is damaged or not of its name is compiled again; beyond `MAX_ENTRIES` those unused for
longest go.
`GDNBENCH_CACHE_DIR` names the cache's place; by default it lies in the user's cache directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import stat
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from gdnbench.sim import special_function
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine import engine_interface, mbarrier
from gdnbench.sim.ptx import isa

# What every x86-64 CPU that the engine is tested on has: without them its code does not run.
_NEEDED = ("avx2", "f16c", "fma")

_MAGIC = b"gdnbench-sim-1\n"
# An entry is 20 KB to 2 MB.
MAX_ENTRIES = 500


def _files() -> list[Path]:
    """The sources that decide what a PTX text becomes: this package, the parser, and the tables and places
    that compiled code holds."""
    packages = (Path(__file__).parent, Path(isa.__file__).parent)
    modules = (special_function, engine_interface, mbarrier)
    return [
        *(path for package in packages for path in sorted(package.glob("*.py"))),
        *(Path(str(module.__file__)) for module in modules),
    ]


def _sources() -> bytes:
    """Their digest: a change of the engine makes old entries unreachable."""
    digest = hashlib.sha256()
    for path in _files():
        digest.update(path.read_bytes())
    return digest.digest()


_VERSION = _sources()  # taken when the sources are imported, not when the first kernel is compiled
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Compiled:
    """An object file and a JSON record of the translator."""

    code: bytes
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Machine code in memory: `run(state, quantum) -> status`. `engine` owns the memory."""

    run: Callable[[int, int], int]
    engine: Any


@cache
def _host() -> tuple[str, str]:
    """(CPU name, its features) as LLVM spells them."""
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
    """Whether this CPU has an extension, as LLVM calls it."""
    return f"+{name}" in _host()[1].split(",")


def _machine() -> Any:
    """The large code model: code and constants are mapped one by one, and among tensors of some GB further
    apart than the 2 GB that addresses relative to the code reach. It costs the engine 7 % of its speed."""
    cpu, features = _host()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=1, reloc="static", codemodel="large")


def key(*texts: str) -> str:
    """What a compiled kernel depends on, as a file name."""
    digest = hashlib.sha256(_VERSION)
    for text in (*texts, *_host(), repr(llvm.llvm_version_info)):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def cache_directory() -> Path:
    """Where compiled kernels are kept; NoHomeError if that is nowhere."""
    chosen = os.environ.get("GDNBENCH_CACHE_DIR")
    if chosen:
        return Path(chosen) / "sim"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else _home() / ".cache") / "gdnbench" / "sim"


class NoHomeError(RuntimeError):
    """A user who has no home directory, as in containers that give a user a number alone."""


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise NoHomeError(f"user {os.geteuid()} has no home directory; set GDNBENCH_CACHE_DIR") from None


def compile_text(text: str) -> bytes:
    """LLVM IR to an object file."""
    with _lock:
        machine = _machine()
        module = llvm.parse_assembly(text)
        module.triple = llvm.get_default_triple()
        module.data_layout = str(machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=0)
        builder = llvm.create_pass_builder(machine, options)
        passes = llvm.create_new_function_pass_manager()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)
        return bytes(machine.emit_object(module))


def load(code: bytes) -> Loaded:
    """Map an object file into this process."""
    with _lock:
        module = llvm.parse_assembly("")
        engine = llvm.create_mcjit_compiler(module, _machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address = engine.get_function_address("run")
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
    return Loaded(kind(address), engine)


def _own(status: os.stat_result) -> bool:
    """Whether this is a file that nobody else could have written."""
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _head(name: str, body: bytes) -> bytes:
    """What an entry starts with. The name is in the checksum: a copy under another name is none."""
    return _MAGIC + hashlib.sha256(name.encode() + b"\0" + body).digest()


def fetch(name: str) -> Compiled | None:
    """The entry `name`, None if there is none, it is damaged, or somebody else could have written it: an
    entry is machine code that is going to run."""
    try:
        directory = cache_directory()
        # Not waiting for the other end of what may be a pipe.
        with os.fdopen(os.open(directory / name, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not _own(os.fstat(file.fileno())):
                return None
            data = file.read()
    except (OSError, NoHomeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(directory / name)  # its age is the time since it was last used
    head, body = data[: len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
    if head != _head(name, body):
        return None
    size = int.from_bytes(body[:8], "little")
    try:
        record = json.loads(body[8 : 8 + size])
    except ValueError:
        return None
    return Compiled(body[8 + size :], record) if isinstance(record, dict) else None


def keep(name: str, compiled: Compiled) -> None:
    """Write an entry; it appears whole or not at all. A cache that cannot be written costs time, not
    results."""
    record = json.dumps(compiled.record).encode()
    body = len(record).to_bytes(8, "little") + record + compiled.code
    try:
        directory = cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_head(name, body) + body)
            os.replace(temporary, directory / name)
        except BaseException:  # a full disk is not filled with halves of entries
            os.unlink(temporary)
            raise
        _trim(directory)
    except (OSError, NoHomeError):
        return


def _trim(directory: Path) -> None:
    """Delete what was not used for longest, a tenth at a time; other processes may do the same meanwhile."""
    names = os.listdir(directory)
    if len(names) <= MAX_ENTRIES:
        return
    ages = []
    for name in names:
        with contextlib.suppress(OSError):
            ages.append(((directory / name).stat().st_mtime_ns, name))
    for _, name in sorted(ages)[: len(names) - MAX_ENTRIES * 9 // 10]:
        (directory / name).unlink(missing_ok=True)
