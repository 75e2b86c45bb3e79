# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA C++ to PTX with NVRTC, for the simulator: `compile_cuda(source, name="gemm<float, 64>")`.

NVRTC is a library of its own, in the wheel `nvidia-cuda-nvrtc`; it needs neither a GPU nor a driver. It is
looked for in the folders of `sys.path`, then in CUDA_PATH or CUDA_HOME, then where the system keeps
libraries. The headers of CUDA (`cuda_fp16.h`) and of CCCL (`cuda/barrier`) are those beside it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gdnbench.sim.demangle import demangled, names_called, short_name
from gdnbench.sim.errors import CudaCompileError, CudaRefusedError, ExportError, LaunchError
from gdnbench.sim.host.elf import Elf
from gdnbench.sim.ptx.entries import entry_names

INSTALL = 'pip install "gdnbench[nvrtc]"'

# The library, its folder and those of the headers, below a folder of packages; the newest CUDA first.
_WHEELS = (
    ("libnvrtc.so.13", "nvidia/cu13/lib", ("nvidia/cu13/include", "nvidia/cu13/include/cccl")),
    (
        "libnvrtc.so.12",
        "nvidia/cuda_nvrtc/lib",
        ("nvidia/cuda_runtime/include", "nvidia/cuda_nvcc/include", "nvidia/cuda_cccl/include"),
    ),
)
# The same below the root of a toolkit.
_TOOLKIT_LIBRARIES = ("lib64", "lib", "targets/x86_64-linux/lib")
_TOOLKIT_HEADERS = ("include", "include/cccl")
# The file that NVRTC puts name expressions into: an error in it is about the kernel's name.
_NAMES = "__nv_name_map"
_SUCCESS, _COMPILATION = 0, 6  # nvrtcResult


@dataclass(frozen=True, slots=True)
class CudaProgram:
    """What NVRTC made of a source: the `ptx`, the `cubin`, which has ptxas's register counts, the warnings
    in `log`, and the mangled name of the kernel asked for, `entry`; None if none was asked for."""

    ptx: str
    cubin: bytes
    log: str
    entry: str | None


def compile_cuda(
    source: str,
    *,
    name: str | None = None,
    file: str = "kernel.cu",
    arch: str = "sm_100a",
    include: Sequence[str | Path] = (),
    defines: Mapping[str, object] | None = None,
    std: str = "c++17",
    default_device: bool = False,
) -> CudaProgram:
    """Compile a CUDA C++ source with line numbers, which name `file`. Its folder is the first one searched
    for `#include "..."`.

    `name` is the kernel as C++ writes it, such as `ns::add` or `gemm<float, 64>`, which instantiates a
    template. `include` are more folders of headers, `defines` macros by name; None and "" define an empty
    one. `default_device`: functions that are marked neither host nor device are device functions, so that
    headers with host code can be included; otherwise NVRTC refuses them.

    Raises LaunchError for a kernel that the source does not have, CudaRefusedError for a source that does not
    compile, CudaCompileError for an option that NVRTC does not take, ExportError if NVRTC is not installed.
    """
    nvrtc, headers = _load()
    options = [
        f"--gpu-architecture={arch}",
        f"--std={std}",
        "--generate-line-info",
        *(["--device-as-default-execution-space"] if default_device else []),
        *(f"--include-path={folder}" for folder in (Path(file).parent, *include, *headers)),
        *(f"--define-macro={macro}" for macro in map(_macro, (defines or {}).items())),
    ]
    unknown = ""
    if name is not None:
        with _Program(nvrtc, source, file) as program:
            if program.compile(options, name):
                return program.result(program.lowered(name))
            unknown = _first_error(program.log())
            if not unknown.startswith(_NAMES):
                raise _not_compiled(file, arch, program.log())
    with _Program(nvrtc, source, file) as program:
        if not program.compile(options, None):
            raise _not_compiled(file, arch, program.log())
        compiled = program.result(None)
    if name is None:
        return compiled
    return replace(compiled, entry=_entry_called(name, entry_names(compiled.ptx), file, unknown))


def _not_compiled(file: str, arch: str, log: str) -> CudaRefusedError:
    return CudaRefusedError(f"{file} does not compile for {arch}: {_first_error(log)}", log)


def _entry_called(name: str, entries: Sequence[str], file: str, unknown: str) -> str:
    """The kernel outside templates that `name` means: by its mangled name, or without its namespace.
    `unknown` is what the compiler said of the name."""
    found = names_called(name, entries)
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(f"{entry}, which is {demangled(entry)}" for entry in found)
        raise LaunchError(f"{name!r} in {file} may be {listed}: give the mangled name")
    listed = ", ".join(map(short_name, entries)) or "none outside templates"
    raise LaunchError(
        f"{file} has no kernel {name!r}; it has {listed}. NVRTC: {unknown}. Name a template with its"
        " arguments, as 'gemm<float, 64>'"
    )


def registers_of(program: CudaProgram, entry: str) -> int | None:
    """ptxas's register count of a kernel; None if the cubin does not have it."""
    return Elf.parse(program.cubin).registers(entry)


def _macro(definition: tuple[str, object]) -> str:
    name, value = definition
    return name if value is None or value == "" else f"{name}={value}"


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no reason was given")


def _candidates() -> Iterator[tuple[str, list[Path]]]:
    """Where the library may be, best first, each with the folders of the headers that go with it."""
    folders = [Path(folder) for folder in sys.path]
    for name, below, headers in _WHEELS:
        found = [folder / header for folder in folders for header in headers]
        yield from ((str(folder / below / name), found) for folder in folders)
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(variable):
            root = Path(os.environ[variable])
            found = [root / header for header in _TOOLKIT_HEADERS]
            for name, _, _ in _WHEELS:
                yield from ((str(root / below / name), found) for below in _TOOLKIT_LIBRARIES)
    yield from ((name, []) for name, _, _ in _WHEELS)  # the system's loader knows others


def nvrtc_paths() -> list[str]:
    """The files of NVRTC in the folders of `sys.path`, in CUDA_PATH or CUDA_HOME, and in LD_LIBRARY_PATH: of
    each version the one that is preferred."""
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    known = [path for path, _ in _candidates() if "/" in path]
    known += [str(Path(folder) / name) for folder in folders for name, _, _ in _WHEELS]
    found: dict[str, str] = {}
    for path in known:
        if Path(path).exists():
            found.setdefault(Path(path).name, path)
    return list(found.values())


def _load() -> tuple[ctypes.CDLL, list[Path]]:
    """The library, and the folders of its headers. Raises ExportError if there is no library."""
    for path, headers in _candidates():
        library = _load_at(path)
        if library is not None:
            return library, [folder for folder in headers if folder.is_dir()]
    raise ExportError(f"CUDA C++ needs NVRTC, which is not installed: {INSTALL}")


@cache
def _load_at(path: str) -> ctypes.CDLL | None:
    if "/" in path and not Path(path).exists():
        return None
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return None
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


class _Program:
    """An nvrtcProgram (NVRTC, "User Interface"), to be used in a `with` statement."""

    def __init__(self, nvrtc: ctypes.CDLL, source: str, file: str) -> None:
        self._nvrtc = nvrtc
        self._file = file
        self._handle = ctypes.c_void_p()
        self._call("CreateProgram", ctypes.byref(self._handle), source.encode(), file.encode(), 0, None, None)

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._call("DestroyProgram", ctypes.byref(self._handle))

    def result(self, entry: str | None) -> CudaProgram:
        """What `compile` has made."""
        ptx = self._bytes("PTX").rstrip(b"\0").decode()
        return CudaProgram(ptx, self._bytes("CUBIN"), self.log(), entry)

    def compile(self, options: Sequence[str], name: str | None) -> bool:
        """Compile, and instantiate `name`; False if the source, the name or an option is wrong."""
        if name is not None:
            self._call("AddNameExpression", self._handle, name.encode())
        texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        result = self._nvrtc.nvrtcCompileProgram(self._handle, len(options), texts)
        if result not in (_SUCCESS, _COMPILATION):
            log = self.log()
            raise CudaCompileError(
                f"{self._file} is not compiled: {self._error(result)}: {_first_error(log)}", log
            )
        return bool(result == _SUCCESS)

    def lowered(self, name: str) -> str:
        """The mangled name of what `compile` instantiated."""
        text = ctypes.c_char_p()
        self._call("GetLoweredName", self._handle, name.encode(), ctypes.byref(text))
        assert text.value is not None
        return text.value.decode()

    def log(self) -> str:
        """What the compiler printed."""
        return self._bytes("ProgramLog").rstrip(b"\0").decode("utf-8", "replace").strip()

    def _bytes(self, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", self._handle, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", self._handle, data)
        return data.raw

    def _call(self, function: str, *arguments: object) -> None:
        result = getattr(self._nvrtc, f"nvrtc{function}")(*arguments)
        if result != _SUCCESS:
            raise ExportError(f"{self._file} is not compiled: nvrtc{function}: {self._error(result)}")

    def _error(self, result: int) -> str:
        return str(self._nvrtc.nvrtcGetErrorString(result).decode())
