# SPDX-License-Identifier: Apache-2.0
"""Kernels by name: those that an operation lists, and a user's own functions."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.near_names import nearest_first
from gdnbench.ops import operations
from gdnbench.replay.simulated import SIM, on_virtual_gpu
from gdnbench.replay.taps import with_taps
from gdnbench_kernels.contract import Kernel, Operation, Step
from gdnbench_kernels.peers import STAND_INS

_given: dict[str, Kernel] = {}
"""Functions of this process by the names that they have meanwhile, see `function_given`."""


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A function that can be called, and the convention values it takes (one left out: its default only)."""

    name: str
    target: str  # "package.module:function"
    function: Kernel
    conventions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu", "cuda", SIM)
    fp64: bool = False  # as of the contract's KernelEntry
    steps: tuple[Step, ...] = ()
    cuda_tensors: bool = False  # as of the contract's KernelEntry
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # see `requirements`
    tapped: tuple[str, ...] = ()  # the stages that its taps show, see `taps`


def is_user_kernel(name: str) -> bool:
    """Whether `name` is a function to import rather than one that operations list."""
    return ":" in name


def on_simulator() -> list[str]:
    """Names of the listed kernels that run on the simulator."""
    entries = [entry for operation in operations().values() for entry in operation.kernels.items()]
    return sorted({name for name, entry in entries if SIM in entry.devices})


def check_name(name: str, on: str = "cpu") -> None:
    """BadInputError, with the names there are, if `name` is neither listed nor a `module:function`.
    CannotRunError if it is to run on the simulator and the listed kernel of that name does not."""
    known = sorted({kernel for operation in operations().values() for kernel in operation.kernels})
    if is_user_kernel(name):
        return
    if name not in known:
        there = nearest_first(name, known)
        raise BadInputError(
            f"kernel {name!r} is not known; there are {there}, or a function of your own as"
            " package.module:function or path/file.py:function"
        )
    if on == SIM and name not in on_simulator():
        there = ", ".join(on_simulator()) or "none of the listed kernels"
        raise CannotRunError(
            f"--on sim runs kernels compiled for SM100, and {name!r} is not one of them; there are {there},"
            " or a function of your own that calls one, as package.module:function or path/file.py:function"
        )


def load(name: str, operation: Operation) -> LoadedKernel:
    """The kernel called `name` for `operation`.

    NotImplementedError if the operation has none of that name; ImportError, with what to install, if its
    packages are missing; BadInputError if a user's function is not there.
    """
    check_name(name)
    if is_user_kernel(name):
        return load_function(name)
    if name not in operation.kernels:
        there = ", ".join(sorted(operation.kernels))
        raise NotImplementedError(f"{operation.name} has no kernel {name!r}; there are {there}")
    entry = operation.kernels[name]
    module, _, function = entry.target.partition(":")
    found = getattr(importlib.import_module(module), function)
    if entry.cuda_tensors:
        found = on_virtual_gpu(found)
    return LoadedKernel(
        name,
        entry.target,
        found,
        entry.conventions,
        entry.devices,
        entry.fp64,
        entry.steps,
        entry.cuda_tensors,
    )


def source_folder(name: str) -> Path | None:
    """The folder of a user's function, the outermost package's if it is in one; None for a listed kernel, or
    if it is not found. Nothing is imported."""
    place, _, _ = name.rpartition(":")
    if not is_user_kernel(name):
        return None
    if place.endswith(".py"):
        return Path(place).parent
    top = place.partition(".")[0]
    if (Path(top) / "__init__.py").is_file() or Path(f"{top}.py").is_file():
        return Path(top) if Path(top).is_dir() else Path()
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    return None if spec is None or not spec.origin else Path(spec.origin).parent


def load_function(name: str) -> LoadedKernel:
    """A user's function, "package.module:function" or "path/file.py:function".

    A module is looked for in the current directory first. The function may have an attribute `conventions`, a
    dict of the value or values that it takes of each convention, and an attribute `steps`, a tuple of the
    contract's `Step`; `requires` as `requirements` describes and `taps` as `taps` does; `cuda_tensors`, True
    if it takes CUDA tensors on the simulator too, those of a virtual GPU; and `stand_ins`, the name of a
    package, vllm or sglang, whose kernels' modules it imports without the rest of it. Raises as `load` does.
    """
    if name in _given:
        return of_function(_given[name], name)
    place, _, attribute = name.rpartition(":")
    if not all(part.isidentifier() for part in place.split(".")) and not place.endswith(".py"):
        raise BadInputError(
            f"kernel {name!r}: {place!r} is no module; write package.module:function or path/file.py:function"
        )
    module = _import_file(place) if place.endswith(".py") else _import_module(place)
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        there = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        known = nearest_first(attribute, there) or "none"
        raise BadInputError(f"{place} has no function {attribute!r}; it has {known}")
    return of_function(found, name)


@contextmanager
def function_given(function: Kernel) -> Iterator[tuple[str, bool]]:
    """A name by which `load` finds `function` inside this block, and whether a worker process does so too: it
    can import what a module has, unless that is `__main__`, as of a notebook."""
    module, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(module) if isinstance(module, str) and module != "__main__" else None
    for part in qualified.split("."):
        found = getattr(found, part, None)
    name = f"{module}:{qualified or type(function).__qualname__}"
    if found is function:
        yield name, True
        return
    _given[name] = function
    try:
        yield name, False
    finally:
        del _given[name]


def of_function(function: Kernel, name: str) -> LoadedKernel:
    """A user's function as a kernel called `name`; its attributes are read as `load_function` says."""
    declared = getattr(function, "conventions", {})
    conventions = {
        key: (value,) if isinstance(value, str) else tuple(value) for key, value in declared.items()
    }
    return LoadedKernel(
        name,
        name,
        _callable(function, name),
        conventions,
        steps=tuple(getattr(function, "steps", ())),
        cuda_tensors=bool(getattr(function, "cuda_tensors", False)),
        requires=as_words(getattr(function, "requires", {})),
        tapped=tuple(stage for one in getattr(function, "taps", ()) for stage in one.stages),
    )


def as_words(declared: Mapping[str, str | tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The attribute `requires` of a function, with every value as several words."""
    return {name: (value,) if isinstance(value, str) else tuple(value) for name, value in declared.items()}


def _callable(function: Kernel, name: str) -> Kernel:
    """What calls a user's function as its attributes `taps`, `stand_ins` and `cuda_tensors` say."""
    if taps := tuple(getattr(function, "taps", ())):
        function = with_taps(function, taps)
    if package := getattr(function, "stand_ins", ""):
        if package not in STAND_INS:
            raise BadInputError(
                f"kernel {name!r} has stand-ins for {package!r}; there are stand-ins for"
                f" {', '.join(STAND_INS)}"
            )
        function = STAND_INS[package].around(function)
    return on_virtual_gpu(function) if getattr(function, "cuda_tensors", False) else function


def load_step(step: Step, kernel: LoadedKernel) -> LoadedKernel:
    """A step of `kernel` as something that can be called, where and how the kernel can."""
    name = f"{kernel.name}, step {step.name}"
    loaded = of_function(step.target, name) if callable(step.target) else load_function(step.target)
    function = loaded.function
    if kernel.cuda_tensors and not loaded.cuda_tensors:
        function = on_virtual_gpu(function)
    return replace(kernel, name=name, function=function, steps=())


def _import_module(name: str) -> ModuleType:
    """A module as `python -m` would find it: the current directory comes first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _import_file(path: str) -> ModuleType:
    file = Path(path).resolve()
    if not file.is_file():
        raise BadInputError(f"kernel file {path} does not exist")
    here = Path.cwd()
    if file.is_relative_to(here) and str(here) not in sys.path:
        sys.path.insert(0, str(here))  # the file may import modules of the user's own folder
    spec = importlib.util.spec_from_file_location(f"gdnbench_user_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that dataclasses and pickles of the file find it
    spec.loader.exec_module(module)
    return module
