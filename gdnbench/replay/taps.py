# SPDX-License-Identifier: Apache-2.0
"""Shows stages of a kernel whose host code hands them from one function to the next.

    kernel.taps = (tap("their.package.module", "launch_uw", U=2, W=3),)

With `--stages`, replay keeps argument 2 of that function as the stage U and argument 3 as W, after
the function has returned. Inside `replacing`, the stage is overwritten there before the host code goes on.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gdnbench_kernels.contract import Kernel

RESULT = "return"

Replacement = Callable[[Tensor], Tensor]
"""Another value of a stage, of the same shape and dtype, from the one that the kernel left; on the CPU."""

_replacements: ContextVar[Mapping[str, Replacement] | None] = ContextVar(
    "gdnbench_taps_replaced", default=None
)


@contextmanager
def replacing(stages: Mapping[str, Replacement]) -> Iterator[None]:
    """Inside this block taps that show one of `stages` replace it."""
    token = _replacements.set(stages)
    try:
        yield
    finally:
        _replacements.reset(token)


@dataclass(frozen=True, slots=True)
class Tap:
    """Arguments of `module.function` that are stages: by stage, the argument's position or its name."""

    module: str
    function: str
    stages: Mapping[str, int | str]


def tap(module: str, function: str, **stages: int | str) -> Tap:
    """A tap on `function` where `module` holds it: in the module that calls it, if that imports it by name.

    The value of a stage is the position of an argument, from 0, or its name; "return" is the result.
    """
    return Tap(module, function, stages)


def with_taps(function: Kernel, taps: Sequence[Tap]) -> Kernel:
    """`function` with a parameter `stages`, a dict that the taps fill while it runs. Calling it raises
    ImportError for a module that is not there, NotImplementedError for a function or an argument that is
    not."""

    @functools.wraps(function)
    def call(*, stages: MutableMapping[str, Tensor] | None = None, **arguments: Any) -> Any:
        with ExitStack() as stack:
            if stages is not None:
                for one in taps:
                    stack.enter_context(_tapped(one, stages))
            return function(**arguments)

    known = inspect.signature(function)
    own = inspect.Parameter("stages", inspect.Parameter.KEYWORD_ONLY, default=None)
    last = [one for one in known.parameters.values() if one.kind is one.VAR_KEYWORD]
    rest = [one for one in known.parameters.values() if one.kind is not one.VAR_KEYWORD]
    call.__signature__ = known.replace(parameters=[*rest, own, *last])  # type: ignore[attr-defined]
    return call


@contextmanager
def _tapped(one: Tap, stages: MutableMapping[str, Tensor]) -> Iterator[None]:
    module = importlib.import_module(one.module)
    function = getattr(module, one.function, None)
    if not callable(function):
        raise NotImplementedError(f"a tap names {one.function}, which {one.module} does not have")

    replacements = _replacements.get() or {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        given = inspect.signature(function).bind(*args, **kwargs)
        given.apply_defaults()
        values = {**given.arguments, RESULT: result}
        names = list(given.arguments)
        for stage, place in one.stages.items():
            name = names[place] if isinstance(place, int) and place < len(names) else place
            if not isinstance(values.get(str(name)), Tensor):
                raise NotImplementedError(
                    f"a tap shows {stage} as argument {place} of {one.function}, which is no tensor"
                )
            found = values[str(name)].detach().cpu().clone()
            if stage in replacements:
                found = replacements[stage](found)
                values[str(name)].copy_(found)
            stages[stage] = found
        return result

    setattr(module, one.function, call)
    try:
        yield
    finally:
        setattr(module, one.function, function)
