"""The call that `gdnbench sim` is asked for, from a function's name and arguments as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench.sim.compiling import Call


def call_from_text(name: str, texts: list[str], seed: int, arch: str) -> Call | None:
    """What is to be called; None if the function did all by itself."""
    import torch

    from gdnbench.replay.kernels import load_function
    from gdnbench.sim.argspec import TensorSpec, make_tensor, parse_argument
    from gdnbench.sim.compiling import call_of, compile_for
    from gdnbench.sim.host.cutlass_dsl import is_jit

    if ":" not in name:
        raise BadInputError(f"{name!r} is no function; write FILE.py:function or package.module:function")
    generator = torch.Generator().manual_seed(seed)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    dynamic: dict[int, tuple[bool, ...]] = {}
    for argument in map(parse_argument, texts):
        value: Any = argument.value
        if isinstance(value, TensorSpec):
            spec, value = value, make_tensor(value, generator)
            dynamic[id(value)] = spec.dynamic
        if argument.name is not None:
            named[argument.name] = value
        elif named:
            raise BadInputError(f"argument {texts[len(positional) + len(named)]!r} follows a named one")
        else:
            positional.append(value)
    function = load_function(name).function
    if is_jit(function):
        return compile_for(function, positional, named, dynamic, arch)
    return call_of(function(*positional, **named), name)


def tensors_of(call: Call) -> dict[str, Tensor]:
    """Those of its arguments, by name."""
    from gdnbench.sim.host.arguments import tensors_in

    return {named.name: named.tensor for named in tensors_in(call.arguments)}
