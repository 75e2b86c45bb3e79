# SPDX-License-Identifier: Apache-2.0
"""Kernels of PTX and CUDA C++ files, with the launch that `gdnbench sim` takes as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdnbench.errors import BadInputError
from gdnbench.simulated_call import argument_values, put_in

if TYPE_CHECKING:
    from gdnbench.sim import Call, Dim3
    from gdnbench.sim.ptx import Module

STANDARD = "c++17"
_FILE = re.compile(r"(.+?\.(?:ptx|cu))(?::(.+))?", re.DOTALL)
_EXTENT = re.compile(r"(\d{1,18})(?:/(\d{1,18}))?")


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The options of the launch panel as typed; None where one was not given."""

    grid: str | None = None
    block: str | None = None
    cluster: str | None = None
    shared: str | None = None
    include: tuple[str, ...] = ()
    define: tuple[str, ...] = ()
    std: str | None = None

    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [field.name for field in fields(self) if getattr(self, field.name)]

    def words(self) -> Iterator[str]:
        """The options as typed."""
        for name in self.given():
            value = getattr(self, name)
            for text in (value,) if isinstance(value, str) else value:
                yield from (f"--{name}", text)

    def with_values(self, values: Mapping[str, str]) -> LaunchOptions:
        """A copy with each {NAME} replaced by its value."""
        changed: dict[str, Any] = {name: _put_in(getattr(self, name), values) for name in self.given()}
        return replace(self, **changed)


def _put_in(given: str | tuple[str, ...], values: Mapping[str, str]) -> str | tuple[str, ...]:
    if isinstance(given, str):
        return put_in((given,), values)[0]
    return tuple(put_in(given, values))


@dataclass(frozen=True, slots=True)
class KernelFile:
    """A file with kernels: `path`, and the kernel's name if one was given."""

    path: Path
    name: str | None

    @property
    def is_cuda(self) -> bool:
        """Whether it is CUDA C++, and not PTX."""
        return self.path.suffix == ".cu"


def kernel_file(text: str) -> KernelFile | None:
    """What `FILE.ptx`, `FILE.ptx:entry` or `FILE.cu:kernel` names; None for any other text."""
    match = _FILE.fullmatch(text)
    return None if match is None else KernelFile(Path(match[1]), match[2])


def check_options(file: KernelFile | None, options: LaunchOptions, arch: str | None) -> None:
    """BadInputError for an option that does not go with the kernel: `file` is None for a Python function."""
    given = options.given()
    if file is None and given:
        raise BadInputError(
            f"--{given[0]} is for FILE.ptx and FILE.cu: a Python function or a program launches its kernels"
            " itself"
        )
    if file is None or file.is_cuda:
        return
    compiling = [name for name in given if name in ("include", "define", "std")]
    compiling += ["arch"] * (arch is not None)
    if compiling:
        raise BadInputError(f"--{compiling[0]} is for FILE.cu: {file.path} is compiled already")


class FileCall:
    """A kernel of a file with arguments, values or texts, to be called once or again and again. `seed` is
    that of random arguments. `note` takes each line that the compiler of a FILE.cu prints."""

    def __init__(
        self,
        file: KernelFile,
        options: LaunchOptions,
        texts: Sequence[object],
        seed: int,
        arch: str,
        note: Callable[[str], None],
    ) -> None:
        self._file, self._options, self._texts, self._seed = file, options, texts, seed
        self._arch, self._note = arch, note

    def call(self) -> Call:
        """The kernel with its launch shape, and its arguments, made anew."""
        from gdnbench.sim import Call
        from gdnbench.sim.host import PtxKernel, parameter_names

        options = self._options
        try:
            text = self._file.path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise BadInputError(f"{self._file.path} is no text") from None
        how = (options.include, options.define, options.std or STANDARD, self._arch)
        loaded = _load(self._file, text, *how, self._note)
        kernel = loaded.module.kernels[loaded.entry]
        if options.grid is None:
            raise BadInputError(f"{self._file.path}: the launch needs --grid, e.g. --grid 4")
        block = kernel.reqntid if options.block is None else _extents("block", options.block)
        if block is None:
            raise BadInputError(f"{self._file.path}: the launch needs --block, e.g. --block 128")
        labels: list[str] = []
        values: list[object] = []
        known = parameter_names(kernel)
        for argument in argument_values(self._texts, self._seed):
            place = len(labels)
            label = argument.name or (known[place] if place < len(known) else f"argument {place + 1}")
            if label in labels or (argument.name in known and known.index(label) != place):
                raise BadInputError(
                    f"argument {self._texts[place]!r}: {label} is another argument's name; arguments stand in"
                    " the order of the parameters"
                )
            labels.append(label)
            values.append(argument.value)
        ready = PtxKernel(
            loaded.module,
            loaded.entry,
            _extents("grid", options.grid),
            block,
            _shared(options.shared),
            None if options.cluster is None else _extents("cluster", options.cluster),
            loaded.registers,
            (*labels, *known[len(labels) :]),
        )
        return Call(ready, dict(zip(labels, values, strict=True)))


@dataclass(frozen=True, slots=True)
class _Loaded:
    module: Module
    entry: str
    registers: int | None


@cache  # --explore asks for each run
def _load(
    file: KernelFile,
    text: str,
    include: tuple[str, ...],
    define: tuple[str, ...],
    std: str,
    arch: str,
    note: Callable[[str], None],
) -> _Loaded:
    from gdnbench.sim.cuda_source import compile_cuda, registers_of
    from gdnbench.sim.errors import CudaCompileError
    from gdnbench.sim.host import entry_named
    from gdnbench.sim.ptx import entry_names, keep_entry, parse

    if not file.is_cuda:
        # A text without kernels may be no PTX at all, which the parser says.
        entry = entry_named(entry_names(text) or list(parse(text).kernels), file.name, str(file.path))
        return _Loaded(parse(keep_entry(text, entry)), entry, None)
    macros = {name: value for name, _, value in (macro.partition("=") for macro in define)}
    try:
        program = compile_cuda(
            text,
            name=file.name,
            file=str(file.path),
            arch=arch,
            include=include,
            defines=macros,
            std=std,
        )
    except CudaCompileError as error:
        for line in error.log.splitlines():
            note(line)
        raise
    for line in program.log.splitlines():
        note(line)
    entry = program.entry or entry_named(entry_names(program.ptx), None, str(file.path))
    return _Loaded(parse(keep_entry(program.ptx, entry)), entry, registers_of(program, entry))


def _extents(option: str, text: str) -> Dim3:
    """ "8,2" -> (8, 2, 1); "1000/256" -> (4, 1, 1). BadInputError for anything else."""
    found = [_EXTENT.fullmatch(item.strip()) for item in text.split(",")]
    if len(found) > 3 or any(match is None or (match[2] and not int(match[2])) for match in found):
        raise BadInputError(f"--{option} {text!r} is not X, X,Y or X,Y,Z, such as 8,2 or 1000/256")
    numbers = [-(-int(match[1]) // int(match[2] or 1)) for match in found if match is not None]
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _shared(text: str | None) -> int:
    if text is None:
        return 0
    if not text.isdecimal() or len(text) > 18:
        raise BadInputError(f"--shared {text!r} is no number of bytes")
    return int(text)
