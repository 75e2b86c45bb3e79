"""The call that `gdnbench sim` is asked for, from a function's name and arguments as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench.sim import Call


def function_named(name: str) -> Callable[..., Any]:
    """What FILE.py:function or package.module:function names."""
    from gdnbench.replay.kernels import load_function

    if ":" not in name:
        raise BadInputError(f"{name!r} is no function; write FILE.py:function or package.module:function")
    return load_function(name).function


class TextCall:
    """A function with arguments as text, to be called once or again and again. `seed` is that of random
    arguments, and of what a Python function draws of torch."""

    def __init__(
        self,
        name: str,
        texts: Sequence[str],
        seed: int,
        arch: str,
        function: Callable[..., Any] | None = None,
    ) -> None:
        self._name, self._texts, self._seed, self._arch = name, texts, seed, arch
        self._function = function
        self._compiled: Call | None = None
        self._given: list[Any] = []

    def call(self) -> Call | None:
        """What is to be called, its arguments made anew; None if the function did all by itself. A @cute.jit
        function is compiled the first time."""
        from gdnbench.sim import Call, call_of, compile_for
        from gdnbench.sim.host import is_jit

        positional, named, dynamic = self._values()
        if self._function is None:
            self._function = function_named(self._name)
        given = [*positional, *named.values()]
        if self._compiled is not None:
            made = {id(old): new for old, new in zip(self._given, given, strict=True)}
            arguments = {name: made.get(id(value), value) for name, value in self._compiled.arguments.items()}
            return Call(self._compiled.compiled, arguments)
        if not is_jit(self._function):
            return call_of(self._function(*positional, **named), self._name)
        self._compiled = compile_for(self._function, positional, named, dynamic, self._arch)
        self._given = given
        return self._compiled

    def _values(self) -> tuple[list[Any], dict[str, Any], dict[int, tuple[bool, ...]]]:
        """The arguments by position and by name, and what is left open of each tensor, by its id."""
        import torch

        from gdnbench.sim.argspec import TensorSpec, make_tensor, parse_argument

        generator = torch.manual_seed(self._seed)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        dynamic: dict[int, tuple[bool, ...]] = {}
        for argument in map(parse_argument, self._texts):
            value: Any = argument.value
            if isinstance(value, TensorSpec):
                spec, value = value, make_tensor(value, generator)
                dynamic[id(value)] = spec.dynamic
            if argument.name is not None:
                named[argument.name] = value
            elif named:
                text = self._texts[len(positional) + len(named)]
                raise BadInputError(f"argument {text!r} follows a named one")
            else:
                positional.append(value)
        return positional, named, dynamic


def tensors_of(call: Call) -> dict[str, Tensor]:
    """Those of its arguments, by name."""
    from gdnbench.sim.host import tensors_in

    return {named.name: named.tensor for named in tensors_in(call.arguments)}
