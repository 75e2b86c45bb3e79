"""What the kernels of other packages share: packages that are imported when asked for, and their launches.

    fla         flash-linear-attention 0.6.0 with fla-core 0.6.0: Triton
    flashinfer  flashinfer-python 0.7.2.post1: CuTe DSL

A peer is called by the function that its users call. What its launch does not do, another layout, gathered
states, is done before and after it, and its module says so.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from gdnbench_kernels import arguments, flashinfer_stand_in
from gdnbench_kernels.arguments import Output
from gdnbench_kernels.validate import dtype_name

INSTALL = "pip install 'gdnbench[peers]'"
ALIGN = 32  # bytes: the most that a peer compiles for
NO_DISPATCH = {"FLA_FLASH_QLA": "0", "FLA_DISABLE_BACKEND_DISPATCH": "1"}
"""Without these flash-linear-attention calls other packages' kernels where it finds them."""

Function = TypeVar("Function", bound=Callable[..., Any])


def taking(bind: Callable[..., Any]) -> Callable[[Function], Function]:
    """Gives a function of `**call` the parameters of `bind`, by which it is known what to pass."""

    def mark(function: Function) -> Function:
        signature = inspect.signature(bind)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return mark


def fla_module(name: str) -> ModuleType:
    """`fla.<name>`, its dispatch to other backends off. ImportError, with what to do, where it is not."""
    os.environ.update(NO_DISPATCH)
    try:
        module = importlib.import_module(f"fla.{name}")
        backends = importlib.import_module("fla.backends")
    except ImportError as error:
        raise _missing("flash-linear-attention", "fla", error) from error
    if not getattr(backends, "_DISPATCH_DISABLED", False):  # read once, at import
        settings = " ".join(f"{variable}={value}" for variable, value in NO_DISPATCH.items())
        raise ImportError(
            "flash-linear-attention was imported before with its dispatch to other backends on, so what it"
            f" runs may not be its own: set {settings} in the environment"
        )
    return module


def flashinfer_module(name: str, device: torch.device) -> ModuleType:
    """`flashinfer.<name>` for that device; for the CPU, which is the simulator's, without what it needs CUDA
    for. ImportError, with what to do, if it is not there."""
    try:
        if device.type == "cuda":
            return importlib.import_module(f"flashinfer.{name}")
        return flashinfer_stand_in.module(name)
    except ImportError as error:
        raise _missing("flashinfer-python", "flashinfer", error) from error


def flashinfer_call(device: torch.device, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call what came from `flashinfer_module`."""
    if device.type == "cuda":
        return function(*args, **kwargs)
    with flashinfer_stand_in.in_place():
        return function(*args, **kwargs)


def _missing(distribution: str, package: str, error: ImportError) -> ImportError:
    if find_spec(package) is None:
        return ImportError(f"{distribution} is not installed: {INSTALL}")
    return ImportError(f"{distribution} cannot be imported ({error}): {INSTALL}")


class Later(Mapping[str, Tensor]):
    """What a launch left, by contract name, put into the contract's form when it is first asked for: nobody
    asks where launches are timed."""

    def __init__(self, finish: Callable[[], dict[str, Tensor]]) -> None:
        self._finish = cache(finish)

    def __getitem__(self, name: str) -> Tensor:
        return self._finish()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._finish())

    def __len__(self) -> int:
        return len(self._finish())


class PeerLaunch:
    """A launch of a peer's function, and how its result becomes the contract's outputs.

    The result is kept until the next launch: memory that a function allocates anew would else be the same in
    every launch of a round, and stay in the cache.
    """

    def __init__(self, call: Callable[[], Any], finish: Callable[[Any], dict[str, Tensor]]) -> None:
        self._call = call
        self._finish = finish
        self.result: Any = None

    def __call__(self) -> Later:
        with torch.no_grad():
            self.result = self._call()
        return Later(partial(self._finish, self.result))


_warm: set[Hashable] = set()


def kind(peer: str, call: Mapping[str, Any]) -> Hashable:
    """What peers compile and tune for, of a call: all but the tensors' values, and of their addresses what
    they are aligned to."""
    return peer, *(
        (name, value.device, value.dtype, value.shape, value.stride(), value.data_ptr() % ALIGN)
        if isinstance(value, Tensor)
        else (name, value)
        for name, value in sorted(call.items())
    )


def warmed(
    launch: PeerLaunch,
    pool: Tensor | None = None,
    slots: Tensor | None = None,
    once: Hashable | None = None,
) -> PeerLaunch:
    """`launch`, called once, so that all is compiled and tuned; rows `slots` of `pool` are as before. Of
    calls of one kind `once` the first of this process is called: a timing prepares hundreds of a kind."""
    if once is not None and once in _warm:
        return launch
    saved = None if pool is None or slots is None else pool[slots]
    launch()
    if pool is not None and saved is not None:
        pool[slots] = saved
    if once is not None:
        _warm.add(once)
    return launch


def held(tensor: Tensor) -> Tensor:
    """The tensor as a peer can be given it: itself, or a contiguous, aligned copy."""
    return arguments.held(tensor, ALIGN)


def output_of(given: Tensor | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Output:
    """The caller's output where a peer can write to it, else a new one."""
    return Output.of(given, shape, dtype, device, ALIGN)


def take_dtypes(peer: str, name: str, tensor: Tensor | None, *taken: torch.dtype) -> None:
    """NotImplementedError unless the tensor has one of those dtypes, or there is none."""
    if tensor is not None and tensor.dtype not in taken:
        names = " or ".join(map(dtype_name, taken))
        raise NotImplementedError(f"{peer} takes {name} as {names}, not as {dtype_name(tensor.dtype)}")


def take_dims(peer: str, k: Tensor, v: Tensor, size: int) -> None:
    """NotImplementedError unless K and V are both `size`."""
    if k.shape[-1] != size or v.shape[-1] != size:
        raise NotImplementedError(f"{peer} takes K = V = {size}, not K = {k.shape[-1]} and V = {v.shape[-1]}")
