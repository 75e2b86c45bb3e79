"""Shared by the wrappers of other packages' kernels (peers): lazy imports and launches.

    fla         flash-linear-attention 0.4.2 to 0.6.0 with the fla-core of that version: Triton
    flashinfer  flashinfer-python 0.7.1 to 0.7.2.post1: CuTe DSL
    flashqla    flash-qla 0.1.3 with tilelang 0.1.15: TileLang
    vllm        vllm 0.31.0 to 0.33.0: CuTe DSL, with quack-kernels 0.6.5 for a helper, and Triton
    sglang      sglang 0.5.21 to 0.5.23: Triton, and CuTe DSL with quack-kernels 0.6.5 for a helper

A wrapper calls the function that the package's users call. Conversions that its launch does not include, such
as another layout or gathered states, run before and after it; the wrapper's module lists them.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels import arguments, flashinfer_stand_in, sglang_stand_in, vllm_stand_in
from gdnbench_kernels.arguments import Output
from gdnbench_kernels.compiling import is_redirected
from gdnbench_kernels.validate import dtype_name

INSTALL = "pip install 'gdnbench[peers]'"
PIP_TARGET = "pip install --no-deps --target FOLDER"
FLA_PACKAGES = "flash-linear-attention==0.6.0 fla-core==0.6.0 triton==3.7.1 einops"
FLASHINFER_PACKAGES = "flashinfer-python==0.7.2.post1"
FLASHQLA_PACKAGES = (
    "flash-qla==0.1.3 tilelang==0.1.15 apache-tvm-ffi==0.1.12 torch-c-dlpack-ext z3-solver==4.15.4.0"
    " cloudpickle ml-dtypes psutil tqdm"
)
"""TileLang's own, below the release of apache-tvm-ffi that other packages bring: they need a folder of their
own, ahead of these."""
VLLM_PACKAGES = "vllm==0.33.0 quack-kernels==0.6.5 triton==3.7.1"
SGLANG_PACKAGES = "sglang==0.5.23 quack-kernels==0.6.5 triton==3.7.1 einops"
STAND_INS = {
    "flashinfer": flashinfer_stand_in.STAND_INS,
    "vllm": vllm_stand_in.STAND_INS,
    "sglang": sglang_stand_in.STAND_INS,
}
"""Packages whose kernels' modules a user's function may import without the rest of the package."""
ALIGN = 32  # bytes: the largest alignment that a peer requires
NO_DISPATCH = {"FLA_FLASH_QLA": "0", "FLA_DISABLE_BACKEND_DISPATCH": "1"}
"""Without these settings flash-linear-attention calls other packages' kernels if they are installed."""


def fla_module(name: str) -> ModuleType:
    """`fla.<name>`, without its dispatch to other backends. Raises ImportError, which says what to do, if it
    is missing."""
    os.environ.update(NO_DISPATCH)
    try:
        module = importlib.import_module(f"fla.{name}")
        dispatches = _fla_dispatches()
    except ImportError as error:
        raise _missing("flash-linear-attention", "fla", FLA_PACKAGES, error) from error
    if dispatches:
        settings = " ".join(f"{variable}={value}" for variable, value in NO_DISPATCH.items())
        raise ImportError(
            "flash-linear-attention was imported before with its dispatch to other backends on, so what it"
            f" runs may not be its own: set {settings} in the environment"
        )
    return module


def fla_release() -> tuple[int, ...]:
    """The version of flash-linear-attention that `fla_module` imported, such as (0, 6, 0)."""
    version = str(importlib.import_module("fla").__version__)
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _fla_dispatches() -> bool:
    """Whether flash-linear-attention may call other packages' kernels, which it decides at its import."""
    for name in ("fla.backends", "fla.ops.backends"):  # from 0.6 on, and before
        if find_spec(name) is not None:
            disabled = getattr(importlib.import_module(name), "_DISPATCH_DISABLED", None)
            # Releases before 0.5 choose among their own kernels alone, and have no such switch.
            return not disabled if disabled is not None else fla_release() >= (0, 5)
    return False


def flashinfer_module(name: str) -> ModuleType:
    """`flashinfer.<name>`; while kernels are simulated without its CUDA libraries, see `flashinfer_stand_in`.
    Raises ImportError, which says what to do, if it is missing."""
    try:
        if is_redirected():
            return flashinfer_stand_in.STAND_INS.module(f"flashinfer.{name}")
        return importlib.import_module(f"flashinfer.{name}")
    except ImportError as error:
        raise _missing("flashinfer-python", "flashinfer", FLASHINFER_PACKAGES, error) from error


def flashinfer_call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of `flashinfer_module`, which may import more of FlashInfer."""
    if not is_redirected():
        return function(*args, **kwargs)
    with flashinfer_stand_in.STAND_INS.in_place():
        return function(*args, **kwargs)


def flashqla_function(name: str) -> Callable[..., Any]:
    """`flash_qla.<name>`. Raises ImportError, which says what to do, if the package is missing;
    NotImplementedError without a GPU that it has kernels for."""
    try:
        return getattr(importlib.import_module("flash_qla"), name)  # type: ignore[no-any-return]
    except ImportError as error:
        install = "with --kernel-env FOLDER and nvcc on PATH, "
        raise _missing("flash-qla", "flash_qla", FLASHQLA_PACKAGES, error, install) from error
    except ValueError as error:  # its import reads the GPU's architecture
        raise NotImplementedError(f"FlashQLA has no kernels for this GPU: {error}") from error


def known_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that `function` has parameters for: releases before the newest have fewer."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if name in known}


def vllm_module(name: str) -> ModuleType:
    """`vllm.<name>`, without vLLM's compiled extensions and its engine: see `vllm_stand_in`. Raises
    ImportError, which says what to do, if it or a package of its kernels is missing."""
    try:
        return vllm_stand_in.STAND_INS.module(f"vllm.{name}")
    except ImportError as error:
        raise _missing("vllm", "vllm", VLLM_PACKAGES, error, install="with --kernel-env FOLDER, ") from error


def vllm_call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of `vllm_module`, which may import more of vLLM."""
    with vllm_stand_in.STAND_INS.in_place():
        return function(*args, **kwargs)


def sglang_function(name: str, *modules: str) -> Callable[..., Any]:
    """The function `name` of the first of `modules`, each `sglang.<module>`, that the installed release has:
    SGLang moves its modules between releases. They are imported without its engine, see `sglang_stand_in`.
    Raises ImportError, which says what to do, if SGLang or a package of its kernels is missing;
    NotImplementedError if this release has no such function."""
    for module in modules:
        path = f"sglang.{module}"
        try:
            found = getattr(sglang_stand_in.STAND_INS.module(path), name, None)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{path}.".startswith(f"{error.name}.") and error.name != "sglang":
                continue  # this release does not have the module
            raise _missing_sglang(error) from error
        except ImportError as error:
            raise _missing_sglang(error) from error
        if callable(found):
            return found  # type: ignore[no-any-return]
    raise NotImplementedError(f"this release of SGLang has no function {name} in {' or '.join(modules)}")


def sglang_call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of `sglang_function`, which may import more of SGLang."""
    with sglang_stand_in.STAND_INS.in_place():
        return function(*args, **kwargs)


def takes_argument(function: Callable[..., Any], name: str) -> bool:
    """Whether the function has a parameter of that name: releases add parameters."""
    return name in inspect.signature(function).parameters


def _missing_sglang(error: ImportError) -> ImportError:
    return _missing("sglang", "sglang", SGLANG_PACKAGES, error, install="with --kernel-env FOLDER, ")


def _missing(
    distribution: str,
    package: str,
    wanted: str,
    error: ImportError,
    install: str = f"{INSTALL}, or into a folder for --kernel-env: ",
) -> ImportError:
    how = f"{install}{PIP_TARGET} {wanted}"
    if find_spec(package) is None:
        return ImportError(f"{distribution} is not installed: {how}")
    return ImportError(f"{distribution} cannot be imported ({error}): {how}")


class LazyOutputs(Mapping[str, Tensor]):
    """The outputs of a launch, by contract name, converted to the contract's form at first access: timed
    launches never access them."""

    def __init__(self, finish: Callable[[], dict[str, Tensor]]) -> None:
        self._finish = cache(finish)

    def __getitem__(self, name: str) -> Tensor:
        return self._finish()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._finish())

    def __len__(self) -> int:
        return len(self._finish())


class PeerLaunch:
    """A launch of a peer's function, and the conversion of its result to the contract's outputs.

    The result is kept until the next launch. Otherwise memory that the function allocates would be the same
    in every launch of a round, and stay in the cache.
    """

    def __init__(self, call: Callable[[], Any], finish: Callable[[Any], dict[str, Tensor]]) -> None:
        self._call = call
        self._finish = finish
        self.result: Any = None

    def __call__(self) -> LazyOutputs:
        with torch.no_grad():
            self.result = self._call()
        return LazyOutputs(partial(self._finish, self.result))


_warm: set[Hashable] = set()


def call_kind(peer: str, call: Mapping[str, Any]) -> Hashable:
    """The properties of a call for which peers compile and tune: everything except the tensors' values and
    addresses; of the addresses only the alignment."""
    return peer, *(
        (name, value.device, value.dtype, value.shape, value.stride(), value.data_ptr() % ALIGN)
        if isinstance(value, Tensor)
        else (name, value)
        for name, value in sorted(call.items())
    )


def warmed_up(
    launch: PeerLaunch,
    pool: Tensor | None = None,
    slots: Tensor | None = None,
    once: Hashable | None = None,
) -> PeerLaunch:
    """`launch`, called once so that it is compiled and tuned; rows `slots` of `pool` are restored. Of calls
    with the same `once` only the first of this process is called: a timing prepares hundreds of a kind."""
    if once is not None and once in _warm:
        return launch
    saved = None if pool is None or slots is None else pool[slots]
    launch()
    if pool is not None and saved is not None:
        pool[slots] = saved
    if once is not None:
        _warm.add(once)
    return launch


def contiguous_aligned(tensor: Tensor) -> Tensor:
    """The tensor itself if a peer can take it, else a contiguous, aligned copy."""
    return arguments.contiguous_aligned(tensor, ALIGN)


def output_of(given: Tensor | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Output:
    """The caller's output if a peer can write to it, else a new one."""
    return Output.allocate(given, shape, dtype, device, ALIGN)


def require_dtypes(peer: str, name: str, tensor: Tensor | None, *taken: torch.dtype) -> None:
    """Raises NotImplementedError if the tensor is given and has none of those dtypes."""
    if tensor is not None and tensor.dtype not in taken:
        names = " or ".join(map(dtype_name, taken))
        raise NotImplementedError(f"{peer} takes {name} as {names}, not as {dtype_name(tensor.dtype)}")


def require_dims(peer: str, k: Tensor, v: Tensor, size: int) -> None:
    """Raises NotImplementedError unless K and V are both `size`."""
    if k.shape[-1] != size or v.shape[-1] != size:
        raise NotImplementedError(f"{peer} takes K = V = {size}, not K = {k.shape[-1]} and V = {v.shape[-1]}")
